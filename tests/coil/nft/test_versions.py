"""What a newer library lists is read as what an older one does, and what it is told is what an older one can list."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from coil.kernel.nft_table import DataType, NftSet, NftTable, TableFamily
from coil.nft.difference import plan_commands
from coil.nft.versions import EXAMPLES_SINCE, read_listing, read_version, split_texts, with_examples
from tests.coil.nft.memory_nft import MemoryNft
from tests.coil.nft.tables import nft_tables


@given(nft_tables(), nft_tables())
def test_what_a_newer_version_lists_is_right_and_what_is_wrong_is_not(table: NftTable, other: NftTable) -> None:
    """As libnftables 1.1 lists it, in Debian 13: types by example, and masks instead of prefixes."""
    nft = MemoryNft()
    nft.run(plan_commands([], table))
    plain = nft.listing(table.name)
    listed = [as_newer_lists(entry) for entry in plain]
    assert read_listing(listed) == read_listing(plain) == plain
    assert plan_commands(read_listing(listed), table) == []
    wanted = replace(other, name=table.name, family=table.family)
    assert plan_commands(read_listing(listed), wanted) == plan_commands(plain, wanted)


@given(nft_tables())
def test_no_set_is_written_with_the_name_of_a_single_type(table: NftTable) -> None:
    commands = with_examples(plan_commands([], table))
    sets = [content for command in commands for content in described(command)]
    assert len(sets) == len(table.sets)
    assert not any(isinstance(content.get(key), str) for content in sets for key in ("type", "map"))
    assert read_listing([command["add"] for command in commands]) == [
        command["add"] for command in plan_commands([], table)
    ]


def test_a_set_that_json_has_no_words_for_is_made_before_the_rest() -> None:
    table = NftTable(
        name="t",
        family=TableFamily.BRIDGE,
        chains=(),
        sets=(
            NftSet(name="targets", key=(DataType.LINK, DataType.ND_TARGET)),
            NftSet(name="macs", key=(DataType.LINK, DataType.ETHER)),
        ),
    )
    texts, rest = split_texts(plan_commands([], table))
    assert texts == [
        "add table bridge t",
        "add set bridge t targets { typeof meta iifname . @th,64,128; }",
    ]
    assert [command["add"]["set"]["name"] for command in rest if "set" in command["add"]] == ["macs"]


@pytest.mark.parametrize(
    "target",
    [
        {"payload": {"base": "th", "offset": 64, "len": 128}},
        {"payload": {"protocol": "icmpv6", "field": "taddr"}},
    ],
)
def test_it_is_read_by_whatever_name_a_version_has_for_it(target: dict[str, Any]) -> None:
    typeof = {"typeof": {"concat": [{"meta": {"key": "iifname"}}, target]}}
    listed = [{"set": {"family": "bridge", "name": "targets", "table": "t", "type": typeof, "handle": 2}}]
    [entry] = read_listing(listed)
    assert entry["set"]["type"] == ["ifname", "integer"]


@pytest.mark.parametrize(
    ("said", "version", "is_newer"), [("1.0.6", (1, 0, 6), False), ("1.1.3", (1, 1, 3), True), ("1.2", (1, 2), True)]
)
def test_the_version_is_in_every_answer(said: str, version: tuple[int, ...], is_newer: bool) -> None:
    found = read_version([{"metainfo": {"version": said, "release_name": "x #5", "json_schema_version": 1}}])
    assert found == version
    assert (found >= EXAMPLES_SINCE) is is_newer


def described(command: Any) -> list[dict[str, Any]]:
    return [content for kind, content in command.get("add", {}).items() if kind in ("set", "map")]


def as_newer_lists(entry: dict[str, Any]) -> dict[str, Any]:
    if "rule" in entry:
        return {"rule": entry["rule"] | {"expr": [mask_statement(statement) for statement in entry["rule"]["expr"]]}}
    [command] = with_examples([{"add": entry}])
    # It names the type of what a map leads to.
    return {
        kind: {**content, "map": entry[kind]["map"]} if "map" in content else content
        for kind, content in command["add"].items()
    }


def mask_statement(statement: dict[str, Any]) -> dict[str, Any]:
    match statement:
        case {"match": {"op": comparison, "left": field, "right": {"prefix": {"addr": int(value), "len": length}}}}:
            mask = (1 << 32) - (1 << 32 - length)
            return {"match": {"op": comparison, "left": {"&": [field, mask]}, "right": value}}
    return statement
