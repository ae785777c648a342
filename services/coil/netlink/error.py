"""What can go wrong between this node and its kernel, each with a sentence that says what to look at."""

import os
from pathlib import Path


class NetlinkError(Exception):
    """Any failure of this package. What was asked for has not happened, unless a subclass says otherwise."""


class KernelError(NetlinkError):
    """The kernel refused a request. `errno` is its number, `reason` the kernel's own sentence where it gave
    one.
    """

    def __init__(self, *, doing: str, errno: int, reason: str = "") -> None:
        text = f"{doing}: {os.strerror(errno)}"
        super().__init__(f"{text} ({reason})" if reason else text)
        self.errno = errno
        self.reason = reason


class NamespaceError(NetlinkError):
    """The path is no network namespace that a pod could have. `path` as it was given."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"network namespace {path}: {problem}")
        self.path = path


class LinkExistsError(NetlinkError):
    """The veth was not made, because a link of one of the two names is there already."""


class PodCheckError(NetlinkError):
    """The pod's network is not what was planned; `missing` names each thing that is not there."""

    def __init__(self, missing: tuple[str, ...]) -> None:
        super().__init__("missing: " + "; ".join(missing))
        self.missing = missing


class BusyError(NetlinkError):
    """Too many jobs wait for the kernel already; nothing was begun, try again later."""
