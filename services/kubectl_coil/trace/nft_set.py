"""Lookups in the sets and maps of a dump's nftables, as the kernel would do them. Pure.

The listing is libnftables' (libnftables-json(5)): an element stands as it is, or in `elem` with its timeout; a key of
several parts is a `concat`, and a range a `range` or a `prefix`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any, TypeAlias

from coil.kernel.family import IPAddress
from coil.kernel.nft_element import SetName

Part: TypeAlias = IPAddress | str | int


@dataclass(frozen=True, slots=True)
class _Entries:
    elements: tuple[Any, ...]
    is_map: bool


@dataclass(frozen=True, slots=True)
class NftSets:
    """All sets and maps of a namespace, by family, table and name."""

    _found: Mapping[tuple[str, str, str], _Entries] = field(default_factory=dict)

    @classmethod
    def of(cls, listing: Iterable[Mapping[str, Any]]) -> "NftSets":
        """`listing` is the dump's `tables`."""
        found = {}
        for entry in listing:
            for kind in ("set", "map"):
                if (content := entry.get(kind)) is not None:
                    name = content["family"], content["table"], content["name"]
                    elements = tuple(content.get("elem", ()))
                    found[name] = _Entries(elements, kind == "map")
        return cls(found)

    def __contains__(self, name: SetName) -> bool:
        """Whether there is such a set or map."""
        return _key(name) in self._found

    def has(self, name: SetName, *key: Part) -> bool:
        """Whether an element of the set or map matches the key."""
        return next(self._matching(name, key), None) is not None

    def get(self, name: SetName, *key: Part) -> Any | None:
        """The value of the map's element that matches the key, as the listing has it; None without one."""
        found = next(self._matching(name, key), None)
        return None if found is None else _plain(found[1])

    def _matching(self, name: SetName, key: tuple[Part, ...]) -> Iterator[tuple[Any, Any]]:
        entries = self._found.get(_key(name))
        if entries is None:
            return
        for element in entries.elements:
            pattern, value = element if entries.is_map else (element, None)
            if _matches(_plain(pattern), key):
                yield pattern, value


def _key(name: SetName) -> tuple[str, str, str]:
    return name.family.value, name.table, name.name


def _plain(element: Any) -> Any:
    """Without timeout, counter and comment."""
    return element["elem"]["val"] if isinstance(element, dict) and "elem" in element else element


def _matches(pattern: Any, key: tuple[Part, ...]) -> bool:
    parts = pattern["concat"] if isinstance(pattern, dict) and "concat" in pattern else [pattern]
    return len(parts) == len(key) and all(_fits(part, value) for part, value in zip(parts, key, strict=True))


def _fits(pattern: Any, value: Part) -> bool:
    if isinstance(value, int | str):
        return str(pattern) == str(value)
    match pattern:
        case {"prefix": {"addr": address, "len": length}}:
            return value in ip_network(f"{address}/{length}", strict=False)
        case {"range": [first, last]}:
            return _same_family(first, value) and ip_address(first) <= value <= ip_address(last)  # type: ignore[operator]
        case "*":
            return True
        case str():
            return _is_address(pattern) and ip_address(pattern) == value
    return False


def _same_family(text: str, value: IPAddress) -> bool:
    return _is_address(text) and ip_address(text).version == value.version


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
