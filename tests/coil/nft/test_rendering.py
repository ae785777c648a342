"""Elements as the library wants them, and as it lists them."""

from ipaddress import IPv6Address
from typing import Any

import pytest

from coil.kernel.nft_element import ElementChanges, ElementKey, SetName
from coil.kernel.nft_table import TableFamily
from coil.nft.rendering import render_changes
from integration.netns.listed_elements import parse_elements

NAME = SetName(TableFamily.INET, "t", "m")
MAPPED = str(IPv6Address("::ffff:102:304"))
"""In the words of the running Python: with dots from 3.13 on. What nft lists has them always."""
PLACE = {"family": "inet", "table": "t", "name": "m"}


@pytest.mark.parametrize(
    ("key", "rendered", "listed"),
    [
        ("10.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("10.0.0.0/8", {"prefix": {"addr": "10.0.0.0", "len": 8}}, {"prefix": {"addr": "10.0.0.0", "len": 8}}),
        ("fd00::1-fd00::5", {"range": ["fd00::1", "fd00::5"]}, {"range": ["fd00::1", "fd00::5"]}),
        (MAPPED, MAPPED, "::ffff:1.2.3.4"),
        (("1:1", "10.0.0.1"), {"concat": ["1:1", {"range": ["10.0.0.1"] * 2}]}, {"concat": ["1:1", "10.0.0.1"]}),
    ],
)
def test_there_and_back(key: ElementKey, rendered: Any, listed: Any) -> None:
    changes = ElementChanges(deletes={NAME: (key,)}, adds={NAME: {key: 7}})
    assert render_changes(changes, ranged={NAME}) == [
        {"delete": {"element": {**PLACE, "elem": [rendered]}}},
        {"add": {"element": {**PLACE, "elem": [[rendered, 7]]}}},
    ]
    assert parse_elements([{"map": {**PLACE, "elem": [[listed, 7]]}}]) == {NAME: {key: 7}}
    assert parse_elements([{"set": {**PLACE, "elem": [listed]}}]) == {NAME: {key: None}}


def test_keys_of_several_words_without_ranges() -> None:
    changes = ElementChanges(adds={NAME: {("tcp", "8080"): "80"}})
    [command] = render_changes(changes, ranged=())
    assert command["add"]["element"]["elem"] == [[{"concat": ["tcp", "8080"]}, "80"]]


def test_what_expires_is_nobodys_business() -> None:
    assert parse_elements([{"set": {**PLACE, "flags": ["timeout"], "elem": [{"elem": {"val": "ipv4"}}]}}]) == {}


def test_many_elements_are_several_commands() -> None:
    commands = render_changes(ElementChanges(adds={NAME: {str(number): None for number in range(1_200)}}), ranged=())
    assert [len(command["add"]["element"]["elem"]) for command in commands] == [500, 500, 200]
