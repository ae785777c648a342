"""Network namespaces: opened by path, entered by a thread, and their numbers (linux/net_namespace.h).

A thread's namespace decides where its new sockets live and what it sees below /proc/sys/net; a socket stays
where it was made. Only threads of the worker enter namespaces. Each namespace counts those that its links lead to.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from coil.netlink.error import NamespaceError
from coil.netlink.wire import Request, attribute_u32, parse_attributes, parse_s32

_CLONE_NEWNET = 0x40000000
_CURRENT = Path("/proc/thread-self/ns/net")
_libc = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12


class Namespace:
    """An open network namespace, which exists at least until it is closed. A context manager."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises NamespaceError; never creates anything."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise NamespaceError(path, error.strerror or str(error)) from None

    @classmethod
    def current(cls) -> "Namespace":
        """The namespace of the calling thread."""
        return cls(_CURRENT)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> "Namespace":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def is_same(self, other: "Namespace") -> bool:
        """True if both are one namespace, whatever their paths."""
        return os.path.sameopenfile(self._fd, other._fd)

    def enter(self) -> None:
        """Move the calling thread into this namespace for good. Raises NamespaceError, and then it has not
        moved.
        """
        if _libc.setns(self._fd, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            # Without CAP_SYS_ADMIN, as in a router pod, the kernel refuses the way to where one is already, too.
            if number == errno.EPERM and self._is_current():
                return
            problem = "not a network namespace" if number == errno.EINVAL else os.strerror(number)
            raise NamespaceError(self.path, problem)

    def _is_current(self) -> bool:
        return os.path.samestat(os.fstat(self._fd), os.stat(_CURRENT))  # noqa: PTH116 - as os.fstat

    @contextmanager
    def entered(self, home: "Namespace") -> Iterator[None]:
        """Move the calling thread into this namespace, and back to `home` at the end."""
        self.enter()
        try:
            yield
        finally:
            home.enter()


RTM_GETNSID: Final = 90

_RTGEN = struct.Struct("=Bxxx")  # family
_NETNSA_NSID = 1
_NETNSA_FD = 3
_NOT_ASSIGNED = -1


def get_netns_number(fd: int) -> Request:
    """Ask for the number that the socket's namespace has for the one that is open as `fd`."""
    return Request(RTM_GETNSID, 0, _RTGEN.pack(0) + attribute_u32(_NETNSA_FD, fd), ("find the number of a namespace",))


def parse_netns_number(body: bytes) -> int | None:
    """Read the answer; None where it has no number, so that no link leads there."""
    number = parse_s32(parse_attributes(body, _RTGEN.size)[_NETNSA_NSID])
    return None if number == _NOT_ASSIGNED else number
