"""The network configuration list on the node, which others extend: service meshes append an entry of their own.

What was installed is recorded in the list itself, under a key that runtimes ignore (CNI specification, section 1), so
that entries of others are told from former ones of ours. A list without that key is nobody's extension of ours.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from coil_installer.durable_file import is_file_with, remove_file, staged_file
from coil_installer.settings import InstallError

INSTALLED = "coil.cybozu.com/plugins"
"""The entries as they were installed, in their order."""
_MODE = 0o644
_ATTEMPTS = 5

Entry: TypeAlias = Mapping[str, Any]


def install_conflist(path: Path, wanted: str) -> None:
    """Have the list `wanted` in the file, with the entries of others that are there. Idempotent.

    Who writes at the same time is not overwritten: what they wrote is read, and merged. Raises OSError, and
    InstallError where somebody writes all the time.
    """
    for _ in range(_ATTEMPTS):
        present = _read(path)
        merged = merge_conflist(wanted, present)
        if is_file_with(path, merged, mode=_MODE) or _replace(path, merged, instead_of=present):
            return
    raise InstallError(f"{path.name} changes as often as it is written; find out which program does that")


def uninstall_conflist(path: Path) -> tuple[str, ...]:
    """Remove what was installed; returns the types of the entries that remain in the file, which is gone if none does.
    Idempotent. Raises as `install_conflist`.
    """
    for _ in range(_ATTEMPTS):
        present = _read(path)
        stripped = None if present is None else strip_conflist(present)
        if stripped is None:
            remove_file(path)
            return ()
        if stripped == present or _replace(path, stripped, instead_of=present):
            return tuple(entry["type"] for entry in json.loads(stripped)["plugins"])
    raise InstallError(f"{path.name} changes as often as it is written; find out which program does that")


def merge_conflist(wanted: str, present: bytes | None) -> bytes:
    """The list `wanted`, which is valid, with the entries of others in the `present` one. Idempotent.

    They stay in their order, and each behind the entry of ours that it was behind; if that is not wanted any more, at
    the end. A file that is damaged has no entries.
    """
    conf = json.loads(wanted)
    own: list[Entry] = conf["plugins"]
    places = {entry["type"]: number for number, entry in enumerate(own, start=1)}
    behind: list[list[Entry]] = [[] for _ in range(len(own) + 1)]
    place = 0
    for anchor, foreign in _find_foreign(_parse(present)):
        if anchor is not None:
            place = max(place, places.get(anchor, len(own)))
        behind[place].append(foreign)
    plugins = [*behind[0]]
    for number, entry in enumerate(own, start=1):
        plugins += [entry, *behind[number]]
    if len(plugins) > len(own):
        # The runtime would take the newest of these versions, and who extended the list has agreed to `cniVersion`.
        conf.pop("cniVersions", None)
    return _render(conf | {"plugins": plugins, INSTALLED: own})


def strip_conflist(present: bytes) -> bytes | None:
    """The list without what was installed; None if nothing remains, or if it is nobody's extension of ours.

    Idempotent: that nothing is installed is recorded as well.
    """
    conf = _parse(present)
    foreign = [entry for _, entry in _find_foreign(conf)]
    return _render({**conf, "plugins": foreign, INSTALLED: []}) if conf is not None and foreign else None


def _find_foreign(conf: Mapping[str, Any] | None) -> list[tuple[str | None, Entry]]:
    """The entries of others, each with the type of the entry of ours that it is behind; None: in front of all of them.

    Where none of ours is left, they are behind one that is gone.
    """
    if conf is None:
        return []
    left = [installed for installed in conf[INSTALLED] if installed not in conf["plugins"]]
    anchor: str | None = None
    found: list[tuple[str | None, Entry]] = []
    for entry in conf["plugins"]:
        edited = next((installed for installed in left if installed["type"] == entry["type"]), None)
        if entry in conf[INSTALLED]:
            anchor = entry["type"]
        elif edited is not None:
            left.remove(edited)
            anchor = entry["type"]
        else:
            found.append((anchor, entry))
    return found if anchor is not None else [("", entry) for _, entry in found]


def _parse(present: bytes | None) -> Mapping[str, Any] | None:
    """A list that was installed here; None for anything else."""
    try:
        conf = json.loads(present or b"")
    except ValueError:
        return None
    if not isinstance(conf, dict) or not all(_has_types(conf.get(key)) for key in ("plugins", INSTALLED)):
        return None
    return conf


def _has_types(entries: object) -> bool:
    return isinstance(entries, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("type"), str) for entry in entries
    )


def _render(conf: Mapping[str, Any]) -> bytes:
    return json.dumps(conf, indent=2).encode() + b"\n"


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _replace(path: Path, data: bytes, *, instead_of: bytes | None) -> bool:
    """False if the file is not what it was any more."""
    try:
        with staged_file(path, data, mode=_MODE):
            if _read(path) != instead_of:
                raise _OvertakenError
    except _OvertakenError:
        return False
    return True


class _OvertakenError(Exception):
    pass
