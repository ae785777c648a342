"""What versions of libnftables have different JSON for. Pure.

with_examples(commands)     for versions that take them: types of sets and maps by examples (`typeof`)
split_texts(commands)       sets that can be made in nft's own language only, and the other commands
read_listing(objects)       in the words of `coil.nft.rendering`, whatever version has listed them

Versions from 1.1.2 on store with a set of a single type how that type was written, and what they store for the type's
name crashes older ones when they list the set (kubernetes/kubernetes#136786): `nft` on the node, and kube-proxy, whose
image may have one. An example of the type, such as a header's field, is read by all. How several types were written is
not stored.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from coil.kernel.nft_table import ND_TARGET, DataType

_ALL_BITS: Final = 0xFFFFFFFF
"""Of a mark."""


def _payload(protocol: str, field: str) -> dict[str, Any]:
    return {"typeof": {"payload": {"protocol": protocol, "field": field}}}


def _meta(key: str) -> dict[str, Any]:
    return {"typeof": {"meta": {"key": key}}}


_EXAMPLES: Final[Mapping[str, dict[str, Any]]] = {
    DataType.IPV4.value: _payload("ip", "saddr"),
    DataType.IPV6.value: _payload("ip6", "saddr"),
    DataType.ETHER.value: _payload("ether", "saddr"),
    DataType.CLASS.value: _meta("priority"),
    DataType.MARK.value: _meta("mark"),
    DataType.PACKET_FAMILY.value: _meta("nfproto"),
    DataType.ARP_OPERATION.value: _payload("arp", "operation"),
    DataType.PROTOCOL.value: _meta("l4proto"),
    DataType.PORT.value: _payload("th", "dport"),
    DataType.LINK.value: _meta("iifname"),
}
"""An expression of each type."""

_TEXTS: Final[Mapping[str, str]] = {
    DataType.LINK.value: "meta iifname",
    DataType.ND_TARGET.value: f"@th,{ND_TARGET.offset},{ND_TARGET.length}",
}
"""The same in nft's language, for types of sets that JSON has no word for."""
_TARGETS: Final = (
    {"payload": {"base": "th", "offset": ND_TARGET.offset, "len": ND_TARGET.length}},
    {"payload": {"protocol": "icmpv6", "field": "taddr"}},
)
"""What versions call `ND_TARGET`: those that have no name of it, and those that have one."""


EXAMPLES_SINCE: Final = (1, 1, 2)
"""The first version that stores how a type was written, and the first that takes examples in JSON."""


def read_version(answer: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """The library's version from the objects of any list (libnftables-json(5), METAINFO), such as (1, 0, 6)."""
    [version] = (entry["metainfo"]["version"] for entry in answer if "metainfo" in entry)
    return tuple(int(part) for part in re.findall(r"\d+", version))


def with_examples(commands: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The same commands, for a version that takes types by example."""
    return [_with_examples(command) for command in commands]


def _with_examples(command: Mapping[str, Any]) -> Mapping[str, Any]:
    match command:
        case {"add": {"set": content}}:
            return {"add": {"set": _by_example(content)}}
        case {"add": {"map": content}}:
            return {"add": {"map": _by_example(content)}}
    return command


def _by_example(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _EXAMPLES[value] if key in ("type", "map") and isinstance(value, str) else value
        for key, value in content.items()
    }


def split_texts(commands: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[Mapping[str, Any]]]:
    """Commands in nft's language that make, with their table, the sets of several types of which one has no name; and
    the rest. The former come first, and make no difference where such a set is there.
    """
    texts, rest = [], []
    for command in commands:
        match command:
            case {"add": {"set": {"family": family, "table": table, "name": name, "type": [*types]}}} if (
                DataType.ND_TARGET.value in types
            ):
                key = " . ".join(_TEXTS[each] for each in types)
                texts += [f"add table {family} {table}", f"add set {family} {table} {name} {{ typeof {key}; }}"]
            case _:
                rest.append(command)
    return texts, rest


def read_listing(objects: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The objects of a table in the words of `coil.nft.rendering`. What those do not know stays as it is."""
    return [
        {kind: _READERS[kind](content) if kind in _READERS else content for kind, content in entry.items()}
        for entry in objects
    ]


def _read_set(content: dict[str, Any]) -> dict[str, Any]:
    names: dict[str, Any] = {
        key: name for key in ("type", "map") for name, example in _EXAMPLES.items() if content.get(key) == example
    }
    if isinstance(flags := content.get("flags"), list):
        # Of a set that rules write to. The library sets it where they do, and its first version in JSON is 1.0.7.
        names["flags"] = [flag for flag in flags if flag != "dynamic"]
    match content.get("type"):
        case {"typeof": {"concat": [*parts]}}:
            return {**content, **names, "type": [_read_type(part) for part in parts]}
    return {**content, **names}


def _read_type(part: Mapping[str, Any]) -> object:
    if part in _TARGETS:
        return DataType.ND_TARGET.value
    return next((name for name, example in _EXAMPLES.items() if example["typeof"] == part), part)


def _read_rule(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, "expr": [_read_statement(statement) for statement in content.get("expr", ())]}


def _read_statement(statement: dict[str, Any]) -> dict[str, Any]:
    # Leading bits of a number: listed as the prefix that they were written as, and by nftables 1.1 as a mask.
    match statement:
        case {"match": {"op": comparison, "left": {"&": [field, int(mask)]}, "right": int(value)}}:
            rest = mask ^ _ALL_BITS
            if not rest & rest + 1:
                prefix = {"prefix": {"addr": value, "len": (_ALL_BITS ^ rest).bit_count()}}
                return {"match": {"op": comparison, "left": field, "right": prefix}}
    return statement


_READERS: Final = {"set": _read_set, "map": _read_set, "rule": _read_rule}
