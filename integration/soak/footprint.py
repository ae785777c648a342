"""What a process takes of the machine, from /proc (proc(5)): what leaks shows here."""

import re
from dataclasses import dataclass
from pathlib import Path

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
