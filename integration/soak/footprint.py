"""What a process takes of the machine, from /proc (proc(5)): what leaks shows here."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_INODE = 9  # the field of a line of /proc/net/tcp
_FIELDS = {"threads": "Threads", "rss": "VmRSS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """`rss` is in KiB."""

    descriptors: int
    threads: int
    rss: int

    @classmethod
    def of(cls, pid: int) -> "Footprint":
        """Of a living process. Raises OSError."""
        folder = Path("/proc") / str(pid)
        status = (folder / "status").read_text()
        values = {name: int(re.findall(rf"^{key}:\s+(\d+)", status, re.MULTILINE)[0]) for name, key in _FIELDS.items()}
        return cls(descriptors=len(list((folder / "fd").iterdir())), **values)

    def growth_faults(self, before: "Footprint", *, bound: "Footprint") -> list[str]:
        """What has grown by more than `bound` since `before`."""
        return [
            f"{name}: {getattr(before, name)} -> {getattr(self, name)}"
            for name in ("descriptors", "threads", "rss")
            if getattr(self, name) - getattr(before, name) > getattr(bound, name)
        ]

    def __str__(self) -> str:
        return f"{self.descriptors} descriptors, {self.threads} threads, {self.rss / 1024:.1f} MiB"


def count_lasting(pid: int) -> int:
    """The descriptors of a living process that are no TCP connections: a client may keep those for a while, or not.

    Raises OSError.
    """
    folder = Path("/proc") / str(pid)
    tables = [(folder / "net" / name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    connections = {line.split()[_INODE] for table in tables for line in table}
    return sum(inode not in connections for inode in _inodes(folder / "fd"))


def _inodes(folder: Path) -> Iterator[str]:
    """Of each descriptor, the number of its socket; empty for what is none."""
    for entry in list(folder.iterdir()):
        try:
            found = _SOCKET.fullmatch(str(entry.readlink()))
        except FileNotFoundError:
            continue  # closed meanwhile
        yield found[1] if found else ""
