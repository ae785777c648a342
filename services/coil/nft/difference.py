"""What leads from a table as it is listed to the table that is wanted. Pure.

The commands are one transaction. Counters that stay keep their figures, sets their elements, and a chain whose rules
are right is not touched; one whose rules differ gets all of them anew, between one packet and the next.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from coil.kernel.nft_table import NftTable
from coil.nft.rendering import render_chain, render_counter, render_rules, render_set, render_table

_INCIDENTAL = frozenset({"handle", "packets", "bytes", "elem"})
"""What the kernel says about an object that nobody asked for."""


def plan_commands(
    listed: Sequence[dict[str, Any]], wanted: NftTable, *, renew: Collection[str] = ()
) -> list[dict[str, Any]]:
    """The commands, none if the table is right. `listed` are the objects of that table, none if it does not exist. The
    sets `renew` are made anew in any case, empty.
    """
    commands: list[dict[str, Any]] = [] if listed else [{"add": render_table(wanted)}]
    objects = [_without_incidentals(entry) for entry in listed]
    # First all chains empty that are to be otherwise: a rule that stays may not name what goes. Then what goes, what
    # comes, and last the rules, which may name all of it.
    flushes: list[dict[str, Any]] = []
    deletes: list[dict[str, Any]] = []
    adds: list[dict[str, Any]] = []
    new_rules: list[dict[str, Any]] = []
    counters = _by_name(objects, "counter")
    deletes += ({"delete": {"counter": _name(counter)}} for counter in counters.values() if not _has(wanted, counter))
    adds += ({"add": render_counter(wanted, name)} for name in wanted.counters if name not in counters)
    sets_differ = _change_sets(objects, wanted, renew, deletes, adds)

    chains = _by_name(objects, "chain")
    all_anew = sets_differ or _chains_change_kind(chains, wanted)
    rules = _of_kind(objects, "rule")
    for chain in wanted.chains:
        rendered, rendered_rules = render_chain(wanted, chain), render_rules(wanted, chain)
        there = chains.pop(chain.name, None)
        old_rules = [rule for rule in rules if rule["chain"] == chain.name]
        same = there == rendered["chain"]
        if same and old_rules == [rule["rule"] for rule in rendered_rules] and not all_anew:
            continue
        if there is not None:
            flushes.append({"flush": {"chain": _name(there)}})
        if not same:
            if there is not None:
                deletes.insert(0, {"delete": {"chain": _name(there)}})
            adds.append({"add": rendered})
        new_rules += ({"add": rule} for rule in rendered_rules)
    for stranger in chains.values():
        flushes.append({"flush": {"chain": _name(stranger)}})
        deletes.insert(0, {"delete": {"chain": _name(stranger)}})
    return [*commands, *flushes, *deletes, *adds, *new_rules]


def _change_sets(
    objects: Sequence[dict[str, Any]],
    wanted: NftTable,
    renew: Collection[str],
    deletes: list[dict[str, Any]],
    adds: list[dict[str, Any]],
) -> bool:
    """Whether one goes, which rules that are right may still name."""
    have = {content["name"]: (kind, content) for kind in ("set", "map") for content in _of_kind(objects, kind)}
    for described in (render_set(wanted, entry) for entry in wanted.sets):
        [(kind, content)] = described.items()
        if have.get(content["name"]) == (kind, content) and content["name"] not in renew:
            del have[content["name"]]
        else:
            adds.append({"add": described})
    deletes += ({"delete": {kind: _name(content)}} for kind, content in have.values())
    return bool(have)


def _chains_change_kind(chains: Mapping[str, dict[str, Any]], wanted: NftTable) -> bool:
    """Whether a chain comes to be or ceases to be one that rules send packets to."""
    kinds = {chain.name: "hook" in render_chain(wanted, chain)["chain"] for chain in wanted.chains}
    return any(name in kinds and kinds[name] != ("hook" in chain) for name, chain in chains.items())


def _has(wanted: NftTable, counter: Mapping[str, Any]) -> bool:
    return counter["name"] in wanted.counters


def _by_name(objects: Iterable[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {content["name"]: content for content in _of_kind(objects, kind)}


def _of_kind(objects: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [entry[kind] for entry in objects if kind in entry]


def _without_incidentals(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        kind: {key: value for key, value in content.items() if key not in _INCIDENTAL}
        for kind, content in entry.items()
    }


def _name(content: dict[str, Any]) -> dict[str, Any]:
    return {key: content[key] for key in ("family", "table", "name")}
