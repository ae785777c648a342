"""What leads from a table as it is listed to the table that is wanted. Pure.

The commands are one transaction. Counters that stay keep their figures, and a chain whose rules are right is not
touched; one whose rules differ gets all of them anew, between one packet and the next.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from coil.kernel.nft_table import NftTable
from coil.nft.rendering import render_chain, render_counter, render_rules, render_table

_INCIDENTAL = frozenset({"handle", "packets", "bytes"})
"""What the kernel says about an object that nobody asked for."""


def plan_commands(listed: Sequence[dict[str, Any]], wanted: NftTable) -> list[dict[str, Any]]:
    """The commands, none if the table is right. `listed` are the objects of that table, none if it does not exist."""
    commands: list[dict[str, Any]] = [] if listed else [{"add": render_table(wanted)}]
    objects = [_without_incidentals(entry) for entry in listed]
    counters = _of_kind(objects, "counter")
    commands += (
        {"add": counter}
        for counter in (render_counter(wanted, name) for name in wanted.counters)
        if counter["counter"] not in counters
    )
    chains = {chain["name"]: chain for chain in _of_kind(objects, "chain")}
    rules = _of_kind(objects, "rule")
    # First all chains empty that are to be otherwise: a rule that stays may not name what goes.
    deletes: list[dict[str, Any]] = []
    adds: list[dict[str, Any]] = []
    for chain in wanted.chains:
        rendered, new_rules = render_chain(wanted, chain), render_rules(wanted, chain)
        there = chains.pop(chain.name, None)
        old_rules = [rule for rule in rules if rule["chain"] == chain.name]
        if there == rendered["chain"] and old_rules == [rule["rule"] for rule in new_rules]:
            continue
        if there is not None:
            commands.append({"flush": {"chain": _name(there)}})
        if there != rendered["chain"]:
            if there is not None:
                deletes.append({"delete": {"chain": _name(there)}})
            adds.append({"add": rendered})
        adds += ({"add": rule} for rule in new_rules)
    for stranger in chains.values():
        commands.append({"flush": {"chain": _name(stranger)}})
        deletes.append({"delete": {"chain": _name(stranger)}})
    deletes += (
        {"delete": {"counter": _name(counter)}} for counter in counters if counter["name"] not in wanted.counters
    )
    return [*commands, *deletes, *adds]


def _of_kind(objects: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [entry[kind] for entry in objects if kind in entry]


def _without_incidentals(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        kind: {key: value for key, value in content.items() if key not in _INCIDENTAL}
        for kind, content in entry.items()
    }


def _name(content: dict[str, Any]) -> dict[str, Any]:
    return {key: content[key] for key in ("family", "table", "name")}
