"""What a table is made of, as bytes that are the same as long as nobody has changed it.

The kernel's bytes are not understood here, and need not be: whoever has an image of a table that was right, the
*model*, can tell what of it is different now. What changes by itself is left out: numbers, uses, counts, elements.

Source: linux/netfilter/nf_tables.h.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from coil.kernel.nft_table import NftTable
from coil.nft.netfilter import Dump, dump_objects, has_table
from coil.nft.rendering import render_chain, render_counter, render_rules, render_set, render_table

_Bytes = tuple[tuple[int, bytes], ...]

_CHAIN: Final = (4, 5, 7, 10, 12)  # hook, policy, type, flags, comment
_RULE: Final = (4, 5, 7)  # expressions, what is left to xtables, comment
_SET: Final = (3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 17, 18)  # all but name, number, kind of memory and count
_COUNTER: Final = 1
_ANONYMOUS, _MAP = 0x1, 0x8


@dataclass(frozen=True, slots=True)
class TableImage:
    """By the names of chains and sets; rules by that of their chain, in their order."""

    chains: Mapping[str, _Bytes]
    rules: Mapping[str, tuple[_Bytes, ...]]
    sets: Mapping[str, _Bytes]
    counters: frozenset[str]


def read_image(table: NftTable) -> TableImage | None:
    """The table of that name as it is now, None if there is none. Raises NftError."""
    doing = f"look at {table}"
    if not has_table(table.family, table.name, doing=doing):
        return None
    chains, rules, sets, objects = (
        dump_objects(kind, table.family, table.name, doing=doing)
        for kind in (Dump.CHAINS, Dump.RULES, Dump.SETS, Dump.OBJECTS)
    )
    by_chain: dict[str, list[_Bytes]] = {}
    for rule in rules:
        by_chain.setdefault(_name(rule[2]), []).append(_choose(rule, _RULE))
    return TableImage(
        chains={_name(chain[3]): _choose(chain, _CHAIN) for chain in chains},
        rules={name: tuple(found) for name, found in by_chain.items()},
        # A set without a name of its own is part of a rule.
        sets={_name(entry[2]): _choose(entry, _SET) for entry in sets if not _flags(entry.get(3)) & _ANONYMOUS},
        counters=frozenset(_name(entry[2]) for entry in objects if _flags(entry.get(3)) == _COUNTER),
    )


def describe_image(image: TableImage | None, model: TableImage, wanted: NftTable) -> list[dict[str, Any]]:
    """The image as a listing of the table's objects, for `coil.nft.difference`: what is the model's is what is wanted,
    and the rest merely something else. Pure.
    """
    if image is None:
        return []
    place = {"family": wanted.family.value, "table": wanted.name}
    listed: list[dict[str, Any]] = [render_table(wanted)]
    listed += (render_counter(wanted, counter) for counter in image.counters)
    sets = {entry.name: entry for entry in wanted.sets}
    for name, found in image.sets.items():
        if name in sets and found == model.sets.get(name):
            listed.append(render_set(wanted, sets[name]))
        else:
            kind = "map" if _flags(dict(found).get(3)) & _MAP else "set"
            listed.append({kind: {**place, "name": name, **_OTHER}})
    chains = {chain.name: chain for chain in wanted.chains}
    for name, found in image.chains.items():
        if name in chains and found == model.chains.get(name):
            listed.append(render_chain(wanted, chains[name]))
        else:
            hook = {"hook": None} if 4 in dict(found) else {}
            listed.append({"chain": {**place, "name": name, **hook, **_OTHER}})
        rules = image.rules.get(name, ())
        if name in chains and rules == model.rules.get(name, ()):
            listed += render_rules(wanted, chains[name])
        elif rules:
            listed.append({"rule": {**place, "chain": name, **_OTHER}})
    return listed


_OTHER: Final = {"other": True}


def _choose(entry: Mapping[int, bytes], kinds: tuple[int, ...]) -> _Bytes:
    return tuple((kind, entry[kind]) for kind in kinds if kind in entry)


def _name(data: bytes) -> str:
    return data.rstrip(b"\0").decode()


def _flags(data: bytes | None) -> int:
    return int.from_bytes(data or b"", "big")
