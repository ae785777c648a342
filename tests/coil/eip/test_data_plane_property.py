"""The index against the rule by the letter, packet by packet; and its changes against its elements."""

from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coil.crd.egress_gateway import PolicyRef
from coil.eip.claim import Eip
from coil.eip.classification import PolicyView
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.eip_set import RANGED, SETS, WAYS
from coil.kernel.family import Family
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
    for family in Family:
        addresses = {policy.address(family) for policy in world.policies} - {None}
        assert elements.get(SETS[family].floating, {}).keys() == set(map(str, addresses))


def is_pod(world: World, source: object) -> bool:
    return any(source in selected for selected in world.sources.values())


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_every_packet_has_the_fate_that_its_policies_say(world: World) -> None:
    index = DataPlaneIndex()
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
        for name, words in changes.anew.items():
            assert name in RANGED
            assert name not in changes.deletes
            assert name not in changes.adds
            self.sets[name] = dict(words)

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
    index, mirror = DataPlaneIndex(), Mirror()
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
    fresh = DataPlaneIndex()
    tell(fresh, world)
    assert mirror.elements() == fresh.elements(), "numbers depend on names alone"
    tell(index, first)
    mirror.apply(index.take_changes())
    assert mirror.elements() == former


def test_a_lost_gateway_leaves_ranges_as_they_are() -> None:
    index = crowd(200)
    for policy in crowd_policies(200):
        index.set_policy(replace(policy, node=None))
    changes = index.take_changes()
    assert {name for part in (changes.deletes, changes.adds, changes.anew) for name in part} == {
        WAYS,
        SETS[Family.IPV4].eips,
    }
    assert len(changes) == 3 * 200


def test_where_many_ranges_go_their_set_comes_anew() -> None:
    index = crowd(200)
    policies = crowd_policies(200)
    index.remove_policy(policies[0].ref)
    one = index.take_changes()
    assert not one.anew
    for policy in policies[1:100]:
        index.remove_policy(policy.ref)
    many = index.take_changes()
    assert list(many.anew) == [SETS[Family.IPV4].choices]
    # Each once for its class, and once for unknown sources.
    assert len(many.anew[SETS[Family.IPV4].choices]) == 200


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
    index = DataPlaneIndex()
    index.set_own(OWN)
    index.set_policies(crowd_policies(count))
    for number, policy in enumerate(crowd_policies(count)):
        index.set_sources(policy.ref, {IPv4Address("10.1.0.0") + number: OWN})
    index.take_changes()
    return index
