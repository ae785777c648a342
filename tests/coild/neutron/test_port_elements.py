"""Changes are what leads from the elements that were taken to the union of what the owners want."""

from collections.abc import Iterable
from random import Random

import pytest

from coil.kernel.nft_element import ElementKey, Elements, ElementValue, SetName, diff_elements
from coil.kernel.nft_table import TableFamily
from coild.neutron.port_elements import PortElements

PORTS = SetName(TableFamily.BRIDGE, "coil-neutron", "ports")
OWN = SetName(TableFamily.INET, "coil-neutron", "own4")
SOURCES = SetName(TableFamily.INET, "coil-neutron", "sources4")


def port(link: str, *, shared: str, value: str) -> Elements:
    return {PORTS: {link: None}, OWN: {shared: None}, SOURCES: {(link, shared): value}}


def union(parts: Iterable[Elements]) -> Elements:
    merged: dict[SetName, dict[ElementKey, ElementValue]] = {}
    for part in parts:
        for name, words in part.items():
            merged.setdefault(name, {}).update(words)
    return merged


def test_an_element_stays_as_long_as_one_owner_wants_it() -> None:
    elements = PortElements()
    elements.write("a", port("a", shared="10.0.0.0", value="1"))
    elements.write("b", port("b", shared="10.0.0.0", value="1"))
    elements.take_changes()
    elements.remove("a")
    changes = elements.take_changes()
    assert changes.deletes == {PORTS: ("a",), SOURCES: (("a", "10.0.0.0"),)}
    assert not changes.adds
    elements.remove("b")
    assert elements.take_changes().deletes == {
        PORTS: ("b",),
        OWN: ("10.0.0.0",),
        SOURCES: (("b", "10.0.0.0"),),
    }
    assert elements.elements() == {}


def test_what_has_come_and_gone_between_two_looks_is_no_change() -> None:
    elements = PortElements()
    elements.write("a", port("a", shared="10.0.0.0", value="1"))
    elements.remove("a")
    assert not elements.take_changes()


def test_another_value_is_a_deletion_and_an_addition() -> None:
    elements = PortElements()
    elements.write("a", port("a", shared="10.0.0.0", value="1"))
    elements.take_changes()
    elements.write("a", port("a", shared="10.0.0.0", value="2"))
    changes = elements.take_changes()
    assert changes.deletes == {SOURCES: (("a", "10.0.0.0"),)}
    assert changes.adds == {SOURCES: {("a", "10.0.0.0"): "2"}}


@pytest.mark.parametrize("seed", range(20))
def test_against_all_of_it_computed_anew(seed: int) -> None:
    random = Random(seed)
    elements, owned = PortElements(), dict[str, Elements]()
    taken: Elements = {}
    for _ in range(200):
        link = random.choice("abcde")
        if random.random() < 0.4:
            owned.pop(link, None)
            elements.remove(link)
        else:
            owned[link] = port(link, shared=random.choice("xy"), value=random.choice("12"))
            elements.write(link, owned[link])
        if random.random() < 0.5:
            wanted = union(owned.values())
            changes, expected = elements.take_changes(), diff_elements(taken, wanted)
            assert {name: {*keys} for name, keys in changes.deletes.items()} == {
                name: {*keys} for name, keys in expected.deletes.items()
            }
            assert changes.adds == expected.adds
            assert elements.elements() == wanted
            taken = wanted
