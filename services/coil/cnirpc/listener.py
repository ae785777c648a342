"""The node's socket file: mode 0600 from its first instant, one daemon per path, replaced without a gap.

Only root may connect, because connect(2) on a Unix socket needs write permission on its file (unix(7)); a check
of SO_PEERCRED would refuse nobody else.
"""

import fcntl
import os
import socket
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

MODE = 0o600

BACKLOG = 1024
"""Connections that may wait to be accepted; net.core.somaxconn bounds it further.

Enough for all pods of a node at once: on a full backlog, a Unix socket refuses those who do not wait in connect(2) with
EAGAIN, which Go's clients take for a failure and asyncio for success.
"""


class ListenError(Exception):
    """The path cannot be listened on. The text says why, for a person to act on."""


class Listener:
    """A bound, listening socket at `path`; a context manager that ends with nothing at the path.

    `<path>.lock` is held for as long as the listener lives and stays as an empty file afterwards: removing a lock
    file that another process may just have opened would let two of them hold "the" lock.
    """

    def __init__(self, path: Path, *, backlog: int = BACKLOG) -> None:
        """Raises ListenError when a live daemon has the path or something there is not a socket."""
        self.path = path
        self._lock = _lock(path)
        try:
            _refuse_unless_stale(path)
            self.socket = _bind(path, backlog)
            self._inode = _inode(path)
        except BaseException:
            os.close(self._lock)
            raise

    def withdraw(self) -> None:
        """Take the file away: nobody connects any more, established connections live on. Idempotent."""
        if _inode(self.path) == self._inode:
            self.path.unlink()

    def close(self) -> None:
        """Withdraw, stop listening, let the next daemon in."""
        self.withdraw()
        self.socket.close()
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _lock(path: Path) -> int:
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ListenError(f"another daemon is serving {path}") from None
    return lock


def _refuse_unless_stale(path: Path) -> None:
    """The lock excludes our own kind; a daemon that does not lock (Coil's in Go) answers on its socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except BlockingIOError:
            pass  # a backlog that is full belongs to somebody
    raise ListenError(f"another daemon is serving {path}")


def _bind(path: Path, backlog: int) -> socket.socket:
    # Bound beside its place and renamed into it: a client meets the stale file or a listening socket, never
    # nothing. The lock makes the fixed name ours, so a crash here leaves one file, not a new one each time.
    beside = Path(f"{path}.new")
    beside.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # bind(2) gives the file the mode of the socket's own inode (net/unix/af_unix.c), so that there is no
        # instant with a wider one and no need for the process-wide umask.
        os.fchmod(listening.fileno(), MODE)
        listening.bind(str(beside))
        listening.listen(backlog)
        beside.replace(path)
    except BaseException:
        listening.close()
        beside.unlink(missing_ok=True)
        raise
    return listening


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
