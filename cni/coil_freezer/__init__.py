"""`coil-freezer`: builds the plugin as one file that needs nothing else: no Python, no shared library, no file at all.

    coil_cni's sources ─► program: compiled, in order ─► frame: C around it ─► executable: gcc, Debian's libpython.a

Used when an image is built, or a checkout's tests want a plugin; never on a node. The installer copies the file there.

Invariants: what the plugin imports is in the file, or the build fails; nothing is unpacked when it runs; a file that
stands under its name is whole.
"""
