"""Link groups as marks of a veth's first and last moments. They are part of the kernel's state and so survive a crash.

A host end is born UNFINISHED and leaves that group when everything on both ends is there; whatever is in it when
coild starts is the rest of an ADD that a crash cut off. DOOMED links are those that are being deleted. Links of
either group may be deleted by anyone at any time; the numbers are such that nobody else uses them by accident.
"""

from typing import Final

DEFAULT: Final = 0
UNFINISHED: Final = int.from_bytes(b"coil", "big")
DOOMED: Final = int.from_bytes(b"COIL", "big")
