"""Elements of sets and maps as libnftables lists them: the oracle for what is read and written without it."""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv6Address
from typing import Any

from coil.kernel.nft_element import ElementKey, Elements, ElementValue, SetName
from coil.kernel.nft_table import NftTable, TableFamily
from coil.nft.table_sync import list_table


def read_elements(tables: Sequence[NftTable]) -> Elements:
    """What is in the sets of the tables now; sets that are not there are not in the answer. Raises NftError."""
    found: dict[SetName, dict[ElementKey, ElementValue]] = {}
    for table in tables:
        found |= parse_elements(list_table(table.family, table.name, terse=False))
    return found


def parse_elements(listed: Iterable[Mapping[str, Any]]) -> dict[SetName, dict[ElementKey, ElementValue]]:
    """The elements of all sets among the objects of a table, but of those whose elements may expire."""
    found: dict[SetName, dict[ElementKey, ElementValue]] = {}
    for entry in listed:
        for kind in ("set", "map"):
            content = entry.get(kind)
            if content is None or "timeout" in content.get("flags", ()):
                continue
            name = SetName(TableFamily(content["family"]), content["table"], content["name"])
            parse = _parse_element if kind == "map" else _parse_member
            found[name] = dict(map(parse, content.get("elem", ())))
    return found


def _parse_element(listed: Any) -> tuple[ElementKey, ElementValue]:
    key, value = listed
    return _parse_key(key), _canonical(value) if isinstance(value, str) else value


def _parse_member(listed: Any) -> tuple[ElementKey, ElementValue]:
    return _parse_key(listed), None


def _parse_key(key: Any) -> ElementKey:
    if isinstance(key, dict) and "concat" in key:
        return tuple(map(_parse_word, key["concat"]))
    return _parse_word(key)


def _parse_word(word: Any) -> str:
    match word:
        case str():
            return _canonical(word)
        case {"prefix": {"addr": address, "len": length}}:
            return f"{_canonical(address)}/{length}"
        case {"range": [first, last]}:
            return f"{_canonical(first)}-{_canonical(last)}"
        case _:
            return str(word)


def _canonical(word: str) -> str:
    # The library writes the end of some IPv6 addresses as an IPv4 one (inet_ntop(3)).
    return str(IPv6Address(word)) if "." in word and ":" in word else word
