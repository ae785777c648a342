"""What is running on this machine, for ``status`` and ``down``: read from the clusters' folders and from /proc."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.cluster.cache import clusters_root
from integration.cluster.cleanup import container_processes, marked_processes
from integration.cluster.cluster import RECORD
from integration.cluster.workspace import is_owned


class Standing(enum.StrEnum):
    """Who a cluster belongs to."""

    OWNED = "owned by a running program, which will take it down"
    RELEASED = "up"
    LEFTOVER = "left over from a crash; `down` removes it"


@dataclass(frozen=True, slots=True)
class Survey:
    """One cluster: ``record`` is what it wrote about itself, empty before it is up; ``memory`` is resident bytes."""

    cluster: str
    standing: Standing
    record: dict[str, Any]
    processes: int
    memory: int


def survey_clusters() -> Iterator[Survey]:
    """Every cluster that has a folder or a lock, in whatever state it is."""
    root = clusters_root()
    for cluster in sorted({path.stem for path in root.glob("*")}):
        pids = {*marked_processes(cluster), *container_processes(cluster)}
        record = _read(root / cluster / RECORD)
        abandoned = Standing.RELEASED if record and pids else Standing.LEFTOVER
        standing = Standing.OWNED if is_owned(cluster) else abandoned
        yield Survey(cluster, standing, record, len(pids), sum(map(_resident, pids)))


def _read(path: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError):
        record: dict[str, Any] = json.loads(path.read_text())
        return record
    return {}


def _resident(pid: int) -> int:
    """Resident set size in bytes; 0 when the process has gone (proc(5), status)."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0
