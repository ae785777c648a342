"""Defects that are known of components, from a file: records in the format of OSV (https://ossf.github.io/osv-schema/).

`read_database` takes what OSV publishes of an ecosystem, a zip of JSON documents, or a folder with these. Nothing is
asked over a network, so the answer is as recent as the file.
"""

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from debian.debian_support import NativeVersion
from packageurl import PackageURL
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from coil_sbom.component import Component

_LARGEST_RECORD: Final = 16 << 20
"""Bytes. The largest that OSV has of Debian and PyPI have less than one million."""


_Package = tuple[str, str]
"""OSV's ecosystem, and the name in it."""


class UnreadableDatabaseError(Exception):
    """The message names the file and what is wrong with it."""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Defect:
    """One that `component` has. `fixed` is the first version without it, empty where there is none yet."""

    identifier: str
    aliases: tuple[str, ...]
    component: Component
    fixed: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """`records` as they were read; `modified` is the time of the latest change in it, as RFC 3339."""

    records: tuple[Any, ...]
    modified: str


def read_database(paths: Iterable[Path]) -> Database:
    """All records of these files and folders. Raises UnreadableDatabaseError, also where there is none."""
    records = []
    for path in paths:
        found = [_parse(name, content) for name, content in _documents(path)]
        if not found:
            raise UnreadableDatabaseError(f"{path}: there is no record")
        records += found
    return Database(records=tuple(records), modified=max((str(one.get("modified", "")) for one in records), default=""))


def known_defects(components: Iterable[Component], database: Database) -> list[Defect]:
    """Sorted, without those withdrawn. Raises UnreadableDatabaseError for a record that is not in the format."""
    by_package = dict[_Package, list[tuple[Component, str]]]()
    for component in components:
        package, version = _package(component.url)
        by_package.setdefault(package, []).append((component, version))
    found = list[Defect]()
    for record in database.records:
        try:
            found += _defects_of(record, by_package)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnreadableDatabaseError(f"the record {record['id']} is not in OSV's format: {error!r}") from error
    return sorted(found)


def _defects_of(record: Any, by_package: Mapping[_Package, Sequence[tuple[Component, str]]]) -> Iterator[Defect]:
    if "withdrawn" in record:
        return
    for affected in record.get("affected", ()):
        for component, version in by_package.get(_affected_package(affected), ()):
            order = _ORDERS[component.url.type]
            if _affects(affected, version, order):
                yield Defect(
                    identifier=record["id"],
                    aliases=tuple(sorted({*record.get("aliases", ()), *record.get("upstream", ())})),
                    component=component,
                    fixed=_fixed(affected, version, order),
                    summary=_summary(record),
                )


def _documents(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        if path.is_dir():
            yield from ((str(file), file.read_bytes()) for file in sorted(path.glob("*.json")))
            return
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.filename.endswith(".json"):
                    continue
                if info.file_size > _LARGEST_RECORD:
                    raise UnreadableDatabaseError(f"{path}: {info.filename} is larger than {_LARGEST_RECORD} bytes")
                yield f"{path}: {info.filename}", archive.read(info)
    except (OSError, zipfile.BadZipFile) as error:
        raise UnreadableDatabaseError(f"{path}: {error}") from error


def _parse(name: str, content: bytes) -> Any:
    try:
        record = json.loads(content)
    except ValueError as error:
        raise UnreadableDatabaseError(f"{name}: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("id"), str):
        raise UnreadableDatabaseError(f"{name}: this is no record of a defect, it has no id")
    return record


def _package(url: PackageURL) -> tuple[_Package, str]:
    """By which OSV knows it. Debian's are known by their source packages."""
    if url.type == "pypi":
        return ("PyPI", str(canonicalize_name(url.name))), url.version or ""
    qualifiers = url.to_dict()["qualifiers"] or {}
    name, _, version = qualifiers.get("upstream", url.name).partition("@")
    return (qualifiers.get("distro", "").replace("debian-", "Debian:"), name), version or url.version or ""


def _affected_package(affected: Any) -> _Package:
    package = affected.get("package", {})
    ecosystem, name = package.get("ecosystem", ""), package.get("name", "")
    return ecosystem, str(canonicalize_name(name)) if ecosystem == "PyPI" else name


def _affects(affected: Any, version: str, order: Callable[[str], Any]) -> bool:
    """Whether `version` is listed, or within a range: OSV's own evaluation algorithm."""
    if version in affected.get("versions", ()):
        return True
    own = order(version)
    for one in affected.get("ranges", ()):
        if one.get("type") != "ECOSYSTEM":
            continue
        inside = False
        for kind, text in _events(one, order):
            at = order(text)
            if kind == "introduced":
                inside = inside or own >= at
            elif (kind == "fixed" and own >= at) or (kind == "last_affected" and own > at):
                inside = False
        if inside:
            return True
    return False


def _events(one: Any, order: Callable[[str], Any]) -> list[tuple[str, str]]:
    """In the order of their versions."""
    events = [(kind, text) for event in one.get("events", ()) for kind, text in event.items()]
    return sorted(events, key=lambda event: order(event[1]))


def _fixed(affected: Any, version: str, order: Callable[[str], Any]) -> str:
    """The next version after that one that ends a range, empty where there is none."""
    events = (event for one in affected.get("ranges", ()) if one.get("type") == "ECOSYSTEM" for event in one["events"])
    fixes = [event["fixed"] for event in events if "fixed" in event and order(event["fixed"]) > order(version)]
    return str(min(fixes, key=order, default=""))


def _summary(record: Any) -> str:
    lines = str(record.get("summary") or record.get("details") or "").strip().splitlines()
    return lines[0] if lines else ""


def _python_order(text: str) -> tuple[int, Version]:
    """What is no version (PEP 440) comes before all that are, as `0` does, which stands for the beginning."""
    try:
        return 1, Version(text)
    except InvalidVersion:
        return 0, Version("0")


def _debian_order(text: str) -> Any:
    """deb-version(7). `0` is before everything (`0~` is not)."""
    return (0, NativeVersion("0")) if text == "0" else (1, NativeVersion(text))


_ORDERS: Final = {"pypi": _python_order, "deb": _debian_order}
