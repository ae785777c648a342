"""Whether a program was refused something that its role should allow, read from its log.

An API server that was just started refuses everybody until it has read its roles, so what is refused soon after the
server was away says nothing. A role that is too narrow is refused at other times, too.
"""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from integration.cluster.process import complete_lines

RECOVERY = timedelta(seconds=30)
"""How long after the last sign of an absent API server a refusal is put down to it: on an overloaded machine it reads
its roles late (more than 10 s were seen)."""

_ABSENCE = ("interrupted", "cannot connect", "connection", "timed out", "disconnected")


def missing_rights(log: Path) -> list[str]:
    """The lines that tell of a right that is missing."""
    missing: list[str] = []
    absent_until: datetime | None = None
    for line, entry in _entries(log):
        said, at = line.lower(), datetime.fromisoformat(entry["timestamp"])
        if "forbidden" in said:
            if absent_until is None or at > absent_until:
                missing.append(line)
        elif any(sign in said for sign in _ABSENCE):
            absent_until = at + RECOVERY
    return missing


def _entries(log: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in complete_lines(log):
        if line.startswith("{"):
            yield line, json.loads(line)
