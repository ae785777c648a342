"""The index against the rule by the letter, packet by packet; and its changes against its elements."""

import time
from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coil.crd.egress_gateway import PolicyRef
from coil.eip.claim import Eip
from coil.eip.classification import PolicyView
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.decision_cache import REST_SECONDS
from coil.eip.eip_set import CLOSED_WORD, DECIDED, DECISIONS, HERE, PENDING, SETS, VALID
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName
from tests.coil.eip.packet_oracle import (
    UNTOUCHED,
    Fate,
    World,
    choose_policy,
    fate_by_sets,
    find_classes,
    is_guarded,
    within,
)
from tests.coil.eip.worlds import (
    DESTINATIONS,
    OTHERS,
    OWN,
    REFS,
    SOURCES,
    clusters,
    mark_of,
    peers,
    pods,
    policies,
    tell,
    worlds,
)


def check_fates(elements: Elements, world: World) -> None:
    for source in SOURCES:
        for destination in DESTINATIONS:
            if source.version != destination.version:
                continue
            wanted, found = world.fate(source, destination), fate_by_sets(elements, source, destination)
            ranged = any(within(source, policy.pod_subnets) for policy in world.policies)
            if world.is_here(source) or (ranged and not is_pod(world, source)):
                assert found == wanted, (source, destination)
            elif not ranged:
                assert found == UNTOUCHED
            for node, mark in world.marks.items():
                # It comes through the tunnel: what is to leave here does, with the right source, and nothing else.
                found = fate_by_sets(elements, source, destination, mark)
                if node in world.nodes_of(source):
                    assert found.source == wanted.source, (source, destination)
                elif ranged:
                    assert found.source == world.fate_of_range(source, destination).source, (source, destination)
                else:
                    assert found == UNTOUCHED, "it speaks in another's name"
    for destination in DESTINATIONS:
        assert is_guarded(elements, destination) == world.guards(destination), destination
    for family in Family:
        addresses = {policy.address(family) for policy in world.policies} - {None}
        assert elements.get(SETS[family].floating, {}).keys() == set(map(str, addresses))


def is_pod(world: World, source: object) -> bool:
    return any(source in selected for selected in world.sources.values())


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_every_packet_has_the_fate_that_its_policies_say(world: World) -> None:
    index = DataPlaneIndex(clock=time.monotonic)
    tell(index, world)
    check_fates(index.elements(), world)


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
        assert not changes.anew

    def elements(self) -> Elements:
        return {name: elements for name, elements in self.sets.items() if elements}


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
    index, mirror = DataPlaneIndex(clock=time.monotonic), Mirror()
    first = world
    tell(index, world)
    mirror.apply(index.take_changes())
    assert mirror.elements() == index.elements()
    former = index.elements()
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
        tell(index, world)
        if look:
            mirror.apply(index.take_changes())
            assert mirror.elements() == index.elements()
            assert not index.take_changes()
    mirror.apply(index.take_changes())
    check_fates(mirror.elements(), world)
    fresh = DataPlaneIndex(clock=time.monotonic)
    tell(fresh, world)
    assert mirror.elements() == fresh.elements(), "numbers depend on names alone"
    tell(index, first)
    mirror.apply(index.take_changes())
    assert mirror.elements() == former


_crowded = (IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2"))
_aims: tuple[tuple[IPNetwork, ...], ...] = ((), (ip_network("8.8.8.0/30"),), (ip_network("8.8.8.0/31"),))
_small_edits = st.one_of(
    st.tuples(st.just("priority"), st.sampled_from(REFS[:3]), st.integers(0, 2)),
    st.tuples(st.just("node"), st.sampled_from(REFS[:3]), st.sampled_from((OWN, OTHERS[0], None))),
    st.tuples(st.just("destinations"), st.sampled_from(REFS[:3]), st.sampled_from(_aims)),
    st.tuples(st.just("pod_subnets"), st.sampled_from(REFS[:3]), st.sampled_from(((), (ip_network("10.0.0.0/30"),)))),
    st.tuples(
        st.just("eip"),
        st.sampled_from(REFS[:3]),
        st.sampled_from((None, Eip(ipv4=IPv4Address("192.0.2.9")))),
    ),
    st.tuples(st.just("removed"), st.sampled_from(REFS[:3]), st.none()),
    st.tuples(st.just("source"), st.sampled_from(REFS[:3]), st.sampled_from(_crowded)),
    st.tuples(st.just("cluster"), st.none(), st.sampled_from(((), (ip_network("8.8.8.0/31"),)))),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(_small_edits, st.booleans()), min_size=8, max_size=30))
def test_what_a_connection_bears_is_what_would_be_decided_now(steps: list[tuple[tuple[Any, ...], bool]]) -> None:
    """As long as it is valid. Few policies of few pods, and what changes is one thing at a time; connections begin
    whenever changes have rested, and stay.
    """
    now = 0.0
    index, mirror = DataPlaneIndex(clock=lambda: now), Mirror()
    world = World(
        own=OWN,
        policies=tuple(own_policy(ref) for ref in REFS[:3]),
        sources={ref: dict.fromkeys(_crowded, OWN) for ref in REFS[:2]},
        cluster=(),
        marks={OTHERS[0]: mark_of(OTHERS[0])},
    )
    borne: dict[tuple[IPAddress, IPAddress], tuple[int, Fate]] = {}
    for edit, rests in steps:
        world = edited(world, *edit)
        tell(index, world)
        mirror.apply(index.take_changes())
        elements = mirror.elements()
        for (source, destination), (mark, fate) in borne.items():
            if str(DECIDED.value | mark) in elements.get(VALID, {}):
                assert fate_by_sets(elements, source, destination) == fate, (source, destination)
        for source in _crowded:
            for destination in DESTINATIONS[:4]:
                assert fate_by_sets(elements, source, destination) == world.fate(source, destination)
        if not rests:
            continue
        index.settle()
        now += 2 * REST_SECONDS
        mirror.apply(index.renew())
        elements = mirror.elements()
        carried = {word for word, way in elements.get(SETS[Family.IPV4].ways, {}).items() if way == HERE}
        assert elements.get(DECISIONS, {}).keys() == carried
        for source in _crowded:
            for destination in DESTINATIONS[:4]:
                decision = decision_for(elements, source, destination)
                if decision is not None:
                    borne[source, destination] = decision, fate_by_sets(elements, source, destination)


def own_policy(ref: PolicyRef) -> PolicyView:
    """For all destinations, with an address that tells it from the others."""
    return PolicyView(ref=ref, node=OWN, eip=Eip(ipv4=IPv4Address("192.0.2.1") + REFS.index(ref)))


def edited(world: World, what: str, ref: PolicyRef, value: Any) -> World:
    """One field of one policy is another one, or a pod is selected that was not, or no more."""
    if what == "cluster":
        return replace(world, cluster=value)
    if what == "source":
        selected = dict(world.sources.get(ref, {}))
        if selected.pop(value, None) is None:
            selected[value] = OWN
        return replace(world, sources={**world.sources, ref: selected})
    known = {policy.ref: policy for policy in world.policies}
    policy = known.pop(ref, None) or own_policy(ref)
    if what != "removed":
        known[ref] = replace(policy, **{what: value})
    return replace(world, policies=tuple(known.values()))


def decision_for(elements: Elements, source: IPAddress, destination: IPAddress) -> int | None:
    """The mark that a connection gets, without what all have."""
    if source.version != destination.version:
        return None
    names = SETS[Family.of(source)]
    classes = find_classes(elements, source)
    policy = choose_policy(elements, str(classes[0]), destination) if classes else None
    if policy is None or elements.get(names.ways, {}).get(policy) != HERE:
        return None
    mark = elements[DECISIONS][policy]
    assert isinstance(mark, int), "each policy that is carried here has rested"
    assert mark & 0xFF000000 == PENDING.value
    return mark & 0xFFFFFF


def test_a_lost_gateway_leaves_ranges_as_they_are() -> None:
    index = crowd(200)
    for policy in crowd_policies(200):
        index.set_policy(replace(policy, node=None))
    changes = index.take_changes()
    assert {*changes.deletes, *changes.adds} == {SETS[Family.IPV4].ways, SETS[Family.IPV4].eips}
    assert len(changes) == 3 * 200


def test_as_many_policies_as_a_cluster_may_have_are_told_apart() -> None:
    """And what goes leaves nothing, and the others as they are."""
    names, index = SETS[Family.IPV4], crowd(20_000)
    elements = index.elements()
    words = set(elements[names.classes].values())
    assert len(words) == len(elements[names.classes]) == 20_000
    assert words == set(elements[names.eips]) == set(elements[names.ways]) - {CLOSED_WORD}
    assert sum(len(elements[name]) for name in names.ranges) == 20_000
    gone = {str(IPv4Address("10.1.0.0") + number) for number in range(200)}
    for number in range(len(gone)):
        index.remove_policy(PolicyRef(namespace="default", name=f"p{number}"))
    assert not index.take_changes().adds
    classes = elements[names.classes]
    left = {address: word for address, word in classes.items() if address not in gone}
    assert index.elements()[names.classes] == left
    assert set(index.elements()[names.ways]) == {CLOSED_WORD, *left.values()}


def crowd_policies(count: int) -> list[PolicyView]:
    return [
        PolicyView(
            ref=PolicyRef(namespace="default", name=f"p{number}"),
            destinations=(ip_network((int(ip_address("198.18.0.0")) + 4 * number, 31)),),
            eip=Eip(IPv4Address("203.0.113.0") + number, None),
            node=OWN,
        )
        for number in range(count)
    ]


def crowd(count: int) -> DataPlaneIndex:
    index = DataPlaneIndex(clock=time.monotonic)
    index.set_own(OWN)
    policies = crowd_policies(count)
    index.set_policies(policies)
    for number, policy in enumerate(policies):
        index.set_sources(policy.ref, {IPv4Address("10.1.0.0") + number: OWN})
    index.take_changes()
    return index


def test_what_a_range_has_decided_counts_no_more_when_a_policy_selects_the_pod() -> None:
    first, second, ranged = _crowded[0], _crowded[1], REFS[1]
    now = 0.0
    index, mirror = DataPlaneIndex(clock=lambda: now), Mirror()
    world = World(
        own=OWN,
        policies=(own_policy(REFS[0]), replace(own_policy(ranged), pod_subnets=(ip_network("10.0.0.0/30"),))),
        sources={REFS[0]: {first: OWN}},
        cluster=(),
        marks={},
    )
    tell(index, world)
    mirror.apply(index.take_changes())
    index.settle()
    now += REST_SECONDS
    mirror.apply(index.renew())
    mark = decision_for(mirror.elements(), second, DESTINATIONS[0])
    assert mark is not None
    tell(index, replace(world, sources={REFS[0]: {first: OWN, second: OWN}}))
    mirror.apply(index.take_changes())
    assert str(DECIDED.value | mark) not in mirror.elements().get(VALID, {})
