"""What of a table is not as it was, as a listing; what follows from it is test_difference's."""

from dataclasses import replace
from typing import Any

import pytest

from coil.eip.eip_table import EipTableOptions, plan_eip_tables
from coil.nft.difference import plan_commands
from coil.nft.table_image import TableImage, describe_image

TABLE = plan_eip_tables(EipTableOptions())[0]
BASE = {chain.name for chain in TABLE.chains if hasattr(chain, "hook")}
MODEL = TableImage(
    chains={chain.name: ((4, b"hook"),) if chain.name in BASE else ((12, b""),) for chain in TABLE.chains},
    rules={chain.name: tuple(((4, b"%d" % place),) for place in range(len(chain.rules))) for chain in TABLE.chains},
    sets={entry.name: ((3, bytes([0, 0, 0, 0 if entry.value is None else 8])),) for entry in TABLE.sets},
    counters=frozenset(TABLE.counters),
)


def commands(image: TableImage | None) -> list[tuple[str, str, str]]:
    """Verb, kind and name of each; of a rule the chain."""
    return [
        (verb, kind, content.get("chain") or content["name"])
        for command in plan_commands(describe_image(image, MODEL, TABLE), TABLE)
        for verb, body in command.items()
        for kind, content in body.items()
    ]


def without(mapping: Any, name: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key != name}


def test_as_it_was() -> None:
    assert commands(MODEL) == []


def test_nothing_there() -> None:
    found = commands(None)
    assert found[0] == ("add", "table", TABLE.name)
    assert {name for _, kind, name in found if kind == "chain"} == {chain.name for chain in TABLE.chains}


@pytest.mark.parametrize("chain", TABLE.chains, ids=lambda chain: chain.name)
def test_rules(chain: Any) -> None:
    assert chain.rules
    anew = [("flush", "chain", chain.name), *[("add", "rule", chain.name)] * len(chain.rules)]
    rules = MODEL.rules[chain.name]
    for other in ((), rules[1:], (*rules, ((4, b"more"),)), (((4, b"other"),), *rules[1:])):
        assert commands(replace(MODEL, rules={**MODEL.rules, chain.name: other})) == anew
    assert commands(replace(MODEL, rules=without(MODEL.rules, chain.name))) == anew


def test_sets() -> None:
    assert commands(replace(MODEL, sets=without(MODEL.sets, "cluster_range4"))) == [("add", "map", "cluster_range4")]
    other = commands(replace(MODEL, sets={**MODEL.sets, "cluster_range4": ((3, bytes([0, 0, 0, 9])),)}))
    assert [entry for entry in other if entry[1] == "map"] == [
        ("delete", "map", "cluster_range4"),
        ("add", "map", "cluster_range4"),
    ]
    more = commands(replace(MODEL, sets={**MODEL.sets, "more": ((3, bytes(4)),)}))
    assert [entry for entry in more if entry[1] == "set"] == [("delete", "set", "more")]


def test_chains() -> None:
    assert commands(replace(MODEL, chains={**MODEL.chains, "more": ()})) == [
        ("flush", "chain", "more"),
        ("delete", "chain", "more"),
    ]
    found = commands(replace(MODEL, chains={**MODEL.chains, "onward": ((4, b"other"),)}))
    assert found[:3] == [("flush", "chain", "onward"), ("delete", "chain", "onward"), ("add", "chain", "onward")]


def test_counters() -> None:
    assert commands(replace(MODEL, counters=MODEL.counters | {"more"})) == [("delete", "counter", "more")]
