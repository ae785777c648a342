"""What the kernel says of a process: its memory and its time (proc(5))."""

import os
from pathlib import Path


def resident_megabytes(pid: int, field: str) -> float:
    """`VmRSS`, what a process has in memory now, or `VmHWM`, the most it ever had (/proc/pid/status)."""
    return _megabytes(Path(f"/proc/{pid}/status"), field)


def proportional_megabytes(pid: int) -> float:
    """What it has in memory, shared pages divided among those who share them (/proc/pid/smaps_rollup)."""
    return _megabytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss")


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads (/proc/pid/stat, fields 14 and 15), in clock ticks of 10 ms."""
    # The name, in parentheses, may hold blanks; what follows it begins with field 3.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _megabytes(file: Path, field: str) -> float:
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"{file} has no {field}")
