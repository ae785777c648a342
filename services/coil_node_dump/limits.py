"""The bounds of a reading of the kernel, and the error if it fails. They are kept apart from the reader, because
importing pyroute2 takes longer than everything else that a program does when it is asked for metrics only.
"""

from dataclasses import dataclass


class KernelReadError(Exception):
    """The kernel has refused, or others have changed what was read each time while it was read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`entries` is for each list of a namespace; of a longer one the first are kept."""

    entries: int
