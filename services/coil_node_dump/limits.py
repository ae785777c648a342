"""What a reading of the kernel is bounded by, and the error where it fails. Apart from the reader, whose import of
pyroute2 takes longer than all the rest of a program that is asked for metrics.
"""

from dataclasses import dataclass


class KernelReadError(Exception):
    """The kernel has refused, or others have changed what was read each time while it was read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`entries` is for each list of a namespace; of a longer one the first are kept."""

    entries: int
