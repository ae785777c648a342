"""Changes in steps: what packets meet between two of them."""

import time
from dataclasses import replace
from ipaddress import ip_network

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coil.eip.change_steps import STEP, delete_effort, split_changes
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.eip_set import DECIDED, DECISIONS, NEXT, SETS, VALID
from coil.kernel.family import Family, IPNetwork
from coil.kernel.nft_element import ElementChanges, ElementKey, ElementValue, SetName
from tests.coil.eip.packet_oracle import UNTOUCHED, Fate, World, fate_by_sets
from tests.coil.eip.test_data_plane_property import Mirror, crowd, crowd_policies
from tests.coil.eip.worlds import DESTINATIONS, SOURCES, tell, worlds

NAMES = SETS[Family.IPV4]


def fates(mirror: Mirror) -> dict[tuple[object, object], Fate]:
    return {
        (source, destination): fate_by_sets(mirror.elements(), source, destination)
        for source in SOURCES
        for destination in DESTINATIONS
        if source.version == destination.version
    }


@settings(max_examples=300, deadline=None)
@given(worlds(), worlds(), st.integers(1, 8))
def test_no_packet_is_without_a_way_between_two(before: World, after: World, limit: int) -> None:
    """That has one before and after; and of what does not concern it, it does not know."""
    after = replace(after, cluster=before.cluster)
    assume(not any(policy.pod_subnets for policy in (*before.policies, *after.policies)))
    index, mirror = DataPlaneIndex(clock=time.monotonic), Mirror()
    tell(index, before)
    mirror.apply(index.take_changes())
    first = fates(mirror)
    tell(index, after)
    changes = index.take_changes()
    steps = list(split_changes(changes, {}, limit=limit))
    passed = []
    for step in steps:
        mirror.apply(step)
        passed.append(fates(mirror))
    assert mirror.elements() == index.elements()
    last = passed[-1] if passed else first
    for between in passed:
        for packet, fate in between.items():
            if UNTOUCHED not in (first[packet], last[packet]):
                assert fate != UNTOUCHED, packet


def touched(changes: ElementChanges) -> set[SetName]:
    return {*changes.deletes, *changes.adds}


def test_decisions_go_before_what_they_were_decided_by() -> None:
    changes = ElementChanges(
        deletes={NAMES.ways: ("5:1",), VALID: (str(DECIDED.value),), DECISIONS: ("5:1",)}, adds={NAMES.ways: {"5:1": 1}}
    )
    first, *rest = split_changes(changes, {}, limit=2)
    assert touched(first) == {VALID, DECISIONS}
    assert [touched(step) for step in rest] == [{NAMES.ways}]


def test_what_is_looked_up_comes_before_what_leads_to_it() -> None:
    adds: dict[SetName, dict[ElementKey, ElementValue]] = {
        NAMES.classes: {"10.1.0.1": "5:2"},
        NAMES.ways: {"5:1": 0x26000000, "6:1": 0x26000000},
        NEXT: {"5:2": "6:1"},
        NAMES.ranges[6]: {("6:1", "8.8.8.8"): "6:1"},
        NAMES.eips: {"5:1": "192.0.2.1"},
    }
    steps = list(split_changes(ElementChanges(adds=adds), {}, limit=1))
    assert [len(step) for step in steps] == [1] * 6
    assert touched(steps[-1]) == {NAMES.classes}
    going = ElementChanges(deletes={name: tuple(words) for name, words in adds.items()})
    steps = list(split_changes(going, {NAMES.ranges[6]: 512}, limit=33))
    assert touched(steps[0]) == {NAMES.classes}
    assert not any(NAMES.classes in touched(step) for step in steps[1:])


def test_a_policy_changes_in_one_step() -> None:
    deletes = {NAMES.ways: ("5:1", "6:1"), NAMES.eips: ("5:1", "6:1")}
    adds: dict[SetName, dict[ElementKey, ElementValue]] = {
        NAMES.ways: {"5:1": 1, "6:1": 2},
        NAMES.eips: {"5:1": "192.0.2.1", "6:1": "192.0.2.2"},
    }
    steps = list(split_changes(ElementChanges(deletes=deletes, adds=adds), {}, limit=4))
    assert [{*step.adds[NAMES.ways], *step.adds[NAMES.eips]} for step in steps] == [{"5:1"}, {"6:1"}]


def test_few_changes_are_one_step() -> None:
    changes = ElementChanges(deletes={NAMES.classes: ("10.1.0.1",)}, adds={NAMES.classes: {"10.1.0.1": "5:1"}})
    assert list(split_changes(changes, {})) == [changes]
    assert list(split_changes(ElementChanges(), {})) == []


def test_a_tenant_of_many_ranges_keeps_nobody_waiting() -> None:
    """All of them go: the kernel takes the longer for each, the more there are."""
    words: tuple[ElementKey, ...] = tuple(("5:1", f"8.8.{number // 256}.{number % 256}") for number in range(1024))
    for size in (1024, 64 * 1024):
        steps = list(split_changes(ElementChanges(deletes={NAMES.ranges[5]: words}), {NAMES.ranges[5]: size}))
        assert max(map(len, steps)) == max(1, STEP // delete_effort(size))
        assert [key for step in steps for key in step.deletes[NAMES.ranges[5]]] == list(words)


def halve(network: IPNetwork) -> IPNetwork:
    return ip_network((int(network.network_address), network.prefixlen + 1))


def range_deletes(step: ElementChanges) -> dict[SetName, int]:
    return {name: len(keys) for name, keys in step.deletes.items() if name in NAMES.ranges}


def test_ranges_come_before_others_go() -> None:
    index, mirror = crowd(100), Mirror()
    mirror.sets = {name: dict(words) for name, words in index.elements().items()}
    for policy in crowd_policies(100):
        index.set_policy(replace(policy, destinations=(ip_network("198.19.0.0/24"),)))
    steps = list(split_changes(index.take_changes(), {}, limit=64))
    for step in steps:
        mirror.apply(step)
        assert not (range_deletes(step) and any(name in NAMES.ranges for name in step.adds))
    assert mirror.elements() == index.elements()
    assert range_deletes(steps[-1])


def test_the_oldest_ranges_go_first() -> None:
    """The kernel finds them sooner, whichever policy changes first."""
    index = crowd(100)
    before = index.elements()
    for policy in reversed(crowd_policies(100)):
        index.set_policy(replace(policy, destinations=(ip_network("198.19.0.0/24"),)))
    gone: dict[SetName, list[ElementKey]] = {}
    for step in split_changes(index.take_changes(), {}, limit=64):
        for name in range_deletes(step):
            gone.setdefault(name, []).extend(step.deletes[name])
    assert gone == {name: list(before[name]) for name in NAMES.ranges if name in before}


def test_ranges_that_lie_in_one_another_are_exchanged_in_one_step() -> None:
    index, mirror = crowd(100), Mirror()
    mirror.sets = {name: dict(words) for name, words in index.elements().items()}
    for policy in crowd_policies(100):
        index.set_policy(replace(policy, destinations=(halve(policy.destinations[0]),)))
    steps = list(split_changes(index.take_changes(), {}, limit=64))
    assert [sum(range_deletes(step).values()) for step in steps if range_deletes(step)] == [100]
    for step in steps:
        mirror.apply(step)
    assert mirror.elements() == index.elements()


def test_a_policy_with_many_ranges_to_exchange_gets_another_number() -> None:
    """All steps are short, and its sources change over one by one."""
    index, mirror = crowd(2), Mirror()
    policy = replace(
        crowd_policies(1)[0], destinations=tuple(ip_network((0xC6120000 + 4 * number, 31)) for number in range(1024))
    )
    index.set_policy(policy)
    index.take_changes()
    mirror.sets = {name: dict(words) for name, words in index.elements().items()}
    sizes = {name: len(words) for name, words in mirror.elements().items()}
    index.set_policy(replace(policy, destinations=tuple(map(halve, policy.destinations))))
    steps = list(split_changes(index.take_changes(), sizes))
    for step in steps:
        mirror.apply(step)
        efforts = [count * delete_effort(sizes[name]) for name, count in range_deletes(step).items()]
        assert sum(efforts) <= STEP
    assert mirror.elements() == index.elements()
