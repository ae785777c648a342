"""Sysctls of the namespace that the calling thread is in.

In a container /proc/sys is mounted read-only, unless it is privileged. One that has the node's /proc/sys/net at
/host/proc/sys/net as well may write there: it is the same tree, and what it shows is the calling thread's likewise
(Linux' fs/proc/proc_sysctl.c, net/sysctl_net.c).
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from coil.kernel.link import Sysctl
from coil.netlink.error import NetlinkError

_ROOT = Path("/proc/sys")
_WRITABLE = Path("/host/proc/sys")
"""Where the chart mounts it, for a container whose own is read-only."""
_IPV6 = "net/ipv6"


def apply_sysctls(sysctls: Iterable[Sysctl]) -> None:
    """Write each of them. Raises NetlinkError for the first that cannot be written.

    Those of IPv6 count as done in a kernel that was started without it: there is nothing that they could be
    about.
    """
    for sysctl in sysctls:
        try:
            file = _open(sysctl.path)
            try:
                os.write(file, sysctl.value.encode())
            finally:
                os.close(file)
        except OSError as error:
            if not _is_pointless(sysctl):
                raise NetlinkError(f"cannot set {sysctl.path} to {sysctl.value}: {error.strerror}") from error


def ensure_sysctls(sysctls: Iterable[Sysctl]) -> None:
    """Write those that say something else, so that a node that was prepared needs no right to write. Raises
    NetlinkError that names the first that cannot be written and says what to do.
    """
    for sysctl in missing_sysctls(sysctls):
        try:
            apply_sysctls((sysctl,))
        except NetlinkError as error:
            remedy = f"on the node, run `sysctl -w {sysctl.path}={sysctl.value}`"
            raise NetlinkError(f"{error}; {remedy}, or mount its /proc/sys/net at {_WRITABLE}/net") from error


def read_sysctl(path: str) -> str | None:
    """What the file below /proc/sys says; None where there is no such file."""
    try:
        return (_ROOT / path).read_text().strip()
    except OSError:
        return None


def missing_sysctls(sysctls: Iterable[Sysctl]) -> list[Sysctl]:
    """Those that say something else."""
    return [sysctl for sysctl in sysctls if not _is_pointless(sysctl) and read_sysctl(sysctl.path) != sysctl.value]


def _open(path: str) -> int:
    try:
        return os.open(_ROOT / path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EROFS or not (_WRITABLE / "net").is_dir():
            raise
    return os.open(_WRITABLE / path, os.O_WRONLY | os.O_CLOEXEC)


def _is_pointless(sysctl: Sysctl) -> bool:
    return sysctl.path.startswith(_IPV6) and not (_ROOT / _IPV6).exists()
