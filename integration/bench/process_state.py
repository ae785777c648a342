"""What the kernel says of a process: its memory and its time (proc(5))."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds of a processor, spent in the program itself and in the kernel on its behalf."""

    user: float = 0.0
    system: float = 0.0

    def __add__(self, other: "CpuTime") -> "CpuTime":
        return CpuTime(self.user + other.user, self.system + other.system)

    def __sub__(self, other: "CpuTime") -> "CpuTime":
        return CpuTime(self.user - other.user, self.system - other.system)

    @property
    def total(self) -> float:
        return self.user + self.system


def resident_megabytes(pid: int, field: str) -> float:
    """`VmRSS`, what a process has in memory now, or `VmHWM`, the most it ever had (/proc/pid/status)."""
    return _megabytes(Path(f"/proc/{pid}/status"), field)


def proportional_megabytes(pid: int) -> float:
    """What it has in memory, shared pages divided among those who share them (/proc/pid/smaps_rollup)."""
    return _megabytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss")


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads; see `cpu_time`."""
    return cpu_time(pid).total


def cpu_time(pid: int) -> CpuTime:
    """Of all threads, dead ones included (/proc/pid/stat, fields 14 and 15), in clock ticks of 10 ms."""
    # The name, in parentheses, may hold blanks; what follows it begins with field 3.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return CpuTime(int(fields[11]) / ticks, int(fields[12]) / ticks)


def thread_seconds(pid: int) -> float:
    """The same of the threads that live, but in nanoseconds: /proc/pid/task/*/schedstat, first field."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


def _megabytes(file: Path, field: str) -> float:
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"{file} has no {field}")
