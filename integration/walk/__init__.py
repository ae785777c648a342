"""DESIGN.md's walks, followed by tracing: which modules of ours run while one thing makes its way through a program.

`traced_program` runs a program as `python -m` would, and notes calls; `recording` turns it on and off from a test;
`story` reads the modules that a section of DESIGN.md names.
"""
