"""The plugin as nodes get it: one executable, in a root file system with nothing else, and while it is replaced."""
