"""A request to the kernel before it has a sequence number."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """One message. `doing` says what it is for, in an error's words; it is put into text only when there is
    an error.
    """

    type: int
    flags: int
    body: bytes
    doing: tuple[object, ...]
