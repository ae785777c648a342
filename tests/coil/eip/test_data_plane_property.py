"""The book against the rule by the letter, packet by packet; and its changes against its elements."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coil.eip.data_plane import DataPlaneBook
from coil.eip.eip_set import SETS
from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName
from tests.coil.eip.packet_oracle import UNTOUCHED, World, fate_by_sets, within
from tests.coil.eip.worlds import DESTINATIONS, OWN, REFS, SOURCES, clusters, peers, pods, policies, tell, worlds


def check_fates(elements: Elements, world: World) -> None:
    for source in SOURCES:
        for destination in DESTINATIONS:
            if source.version != destination.version:
                continue
            wanted, found = world.fate(source, destination), fate_by_sets(elements, source, destination)
            ranged = any(within(source, policy.pod_subnets) for policy in world.policies)
            carried = any(policy.node == OWN for policy in world.policies)
            if world.is_here(source) or (ranged and not is_pod(world, source)):
                assert found == wanted, (source, destination)
            elif not is_pod(world, source):
                assert found == UNTOUCHED
            elif wanted.source is not None or carried:
                # It comes through the tunnel: what is to leave here does, with the right source, and nothing else.
                assert found.source == wanted.source, (source, destination)


def is_pod(world: World, source: object) -> bool:
    return any(source in selected for selected in world.sources.values())


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_every_packet_has_the_fate_that_its_policies_say(world: World) -> None:
    book = DataPlaneBook()
    tell(book, world)
    check_fates(book.elements(), world)


class Mirror:
    """What the kernel has, by the changes alone. Refuses what the kernel would."""

    def __init__(self) -> None:
        self.sets: dict[SetName, dict[ElementKey, ElementValue]] = {}

    def apply(self, changes: ElementChanges) -> None:
        for name, keys in changes.deletes.items():
            for key in keys:
                del self.sets[name][key]
        for name, added in changes.adds.items():
            there = self.sets.setdefault(name, {})
            assert not there.keys() & added.keys()
            there.update(added)

    def elements(self) -> Elements:
        return {name: elements for name, elements in self.sets.items() if elements}


def essence(elements: Elements) -> Mapping[str, Counter[object]]:
    """The elements with each class's number replaced by what is known of the class, numbers being free."""
    by_class = {SETS[family].classes.name for family in SETS} | {SETS[family].subnet_classes.name for family in SETS}
    facts: dict[str, list[object]] = {}
    for name, words in elements.items():
        for key, value in words.items():
            if name.name in by_class:
                facts.setdefault(str(value), []).append((name.name, key))
            elif name.name.startswith(("way", "default", "eip4", "eip6", "node_ip")) and "eips" not in name.name:
                number, *rest = key if isinstance(key, tuple) else (key,)
                facts.setdefault(number, []).append((name.name, *rest, value))
    others = [
        (name.name, key, value)
        for name, words in elements.items()
        if name.name.startswith(("cluster", "eips", "nodes"))
        for key, value in words.items()
    ]
    return {
        "classes": Counter(frozenset(map(repr, known)) for known in facts.values()),
        "others": Counter(map(repr, others)),
    }


edits = st.one_of(
    st.sampled_from(REFS).flatmap(lambda ref: st.tuples(st.just("policy"), st.just(ref), policies(ref))),
    st.tuples(st.just("no policy"), st.sampled_from(REFS), st.none()),
    st.tuples(st.just("sources"), st.sampled_from(REFS), pods),
    st.tuples(st.just("cluster"), st.none(), clusters),
    st.tuples(st.just("peers"), st.none(), peers),
)


@settings(max_examples=100, deadline=None)
@given(worlds(), st.lists(st.tuples(edits, st.booleans()), max_size=8))
def test_changes_lead_from_elements_to_elements(world: World, steps: list[tuple[tuple[Any, ...], bool]]) -> None:
    book, mirror = DataPlaneBook(), Mirror()
    first = world
    tell(book, world)
    mirror.apply(book.take_changes())
    assert mirror.elements() == book.elements()
    former = essence(book.elements())
    for (kind, ref, value), look in steps:
        kept = [policy for policy in world.policies if policy.ref != ref]
        if kind == "policy":
            world = replace(world, policies=(*kept, value))
        elif kind == "no policy":
            world = replace(world, policies=tuple(kept))
        elif kind == "sources":
            world = replace(world, sources={**world.sources, ref: value})
        elif kind == "cluster":
            world = replace(world, cluster=value)
        else:
            world = replace(world, marks=value)
        tell(book, world)
        if look:
            mirror.apply(book.take_changes())
            assert mirror.elements() == book.elements()
            assert not book.take_changes()
    mirror.apply(book.take_changes())
    check_fates(mirror.elements(), world)
    fresh = DataPlaneBook()
    tell(fresh, world)
    assert essence(mirror.elements()) == essence(fresh.elements())
    tell(book, first)
    mirror.apply(book.take_changes())
    assert essence(mirror.elements()) == former
