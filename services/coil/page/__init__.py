"""Pages for people, as text: style, script and frame, tables and grids. Pure, no input or output."""
