"""Sysctls that a node's programs share: written with a record of what they were before, and put back by it at the end.

    NodeSysctls.ensure ─► record, below /run ─► restore_sysctls (`coil-installer restore-sysctls`)

The record lies in a tmpfs, and so lasts as long as the settings do: a restart of the node ends both. What belongs to a
link that Coil has made ends with the link and is not recorded. DESIGN.md has the list
("What is changed of a node's own settings").

Runs in a worker's thread, in the node's namespace.
"""

import json
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from coil.kernel.family import Family
from coil.kernel.link import Sysctl, forwarding_sysctls
from coil.netlink.error import NetlinkError
from coil.netlink.sysctl import apply_sysctls, ensure_sysctls, missing_sysctls, read_sysctl

_BEFORE, _WRITTEN = "before", "written"
_Record: TypeAlias = dict[str, dict[str, str]]
_FORWARDING: Final = frozenset(sysctl.path for sysctl in forwarding_sysctls(tuple(Family)))
_ACCEPT_RA: Final = "/accept_ra"
"""Goes with forwarding: a router with 1 takes no default route from routers."""


class NodeSysctls:
    """One per process; for several threads. Without a `record` nothing is remembered."""

    def __init__(self, record: Path | None = None) -> None:
        self._record = record
        self._lock = threading.Lock()

    def ensure(self, sysctls: Iterable[Sysctl]) -> list[Sysctl]:
        """Write those that say something else; returns them. Idempotent.

        Raises NetlinkError that says what to do where one cannot be written; and, having changed nothing, where what it
        was cannot be recorded.
        """
        missing = missing_sysctls(sysctls)
        if missing:
            if self._record is not None:
                self._remember(self._record, missing)
            ensure_sysctls(missing)
        return missing

    def _remember(self, path: Path, missing: Collection[Sysctl]) -> None:
        with self._lock:
            record = _read(path)
            for sysctl in missing:
                before = record.get(sysctl.path, {}).get(_BEFORE) or read_sysctl(sysctl.path)
                if before is not None:
                    record[sysctl.path] = {_BEFORE: before, _WRITTEN: sysctl.value}
            try:
                _write(path, record)
            except OSError as error:
                names = ", ".join(sysctl.path for sysctl in missing)
                raise NetlinkError(f"{names} not changed: cannot record what it was in {path}: {error}") from error


@dataclass(frozen=True, slots=True)
class Restoration:
    """What has its former value again, and what keeps the one that Coil has written."""

    restored: tuple[Sysctl, ...]
    kept: tuple[Sysctl, ...]


def restore_sysctls(record: Path, *, has_pods: bool) -> Restoration:
    """Give the sysctls of the record their former values, the newest first. Idempotent.

    What others have changed since is theirs. While the node has pods, of whatever network, it goes on to forward, and
    what that takes remains in the record. Raises NetlinkError.
    """
    known = _read(record)
    restored: list[Sysctl] = []
    kept: list[Sysctl] = []
    left: _Record = {}
    for path, entry in reversed(known.items()):
        if read_sysctl(path) != entry[_WRITTEN]:
            continue
        if has_pods and (path in _FORWARDING or path.endswith(_ACCEPT_RA)):
            kept.append(Sysctl(path, entry[_WRITTEN]))
            left[path] = entry
            continue
        former = Sysctl(path, entry[_BEFORE])
        apply_sysctls((former,))
        restored.append(former)
    try:
        if left:
            _write(record, dict(reversed(left.items())))
        else:
            record.unlink(missing_ok=True)
    except OSError as error:
        raise NetlinkError(f"cannot change {record}: {error}") from error
    return Restoration(tuple(restored), tuple(kept))


def _read(path: Path) -> _Record:
    """One that is damaged counts as none: what it said is not known any more."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, Mapping):
        return {}
    return {path: dict(entry) for path, entry in found.items() if _is_of_network(path) and _is_entry(entry)}


def _is_of_network(path: str) -> bool:
    # The record of a program that somebody has taken over must not have the cleanup write anywhere else.
    return path.startswith("net/") and ".." not in path.split("/")


def _is_entry(entry: object) -> bool:
    return isinstance(entry, Mapping) and all(isinstance(entry.get(key), str) for key in (_BEFORE, _WRITTEN))


def _write(path: Path, record: _Record) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(record, file, indent=1)
    beside.replace(path)
