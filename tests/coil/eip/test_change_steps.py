"""Changes in steps: what packets meet between two of them."""

import time
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coil.eip.change_steps import STEP, split_changes
from coil.eip.classification import PolicyView, cluster_spans, find_destinations
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.eip_set import DECIDED, DECISIONS, NEXT, SETS, VALID
from coil.kernel.family import Family
from coil.kernel.nft_element import ElementChanges, ElementKey, ElementValue, SetName
from tests.coil.eip.packet_oracle import UNTOUCHED, Fate, World, fate_by_sets
from tests.coil.eip.test_data_plane_property import Mirror
from tests.coil.eip.worlds import DESTINATIONS, SOURCES, tell, worlds

NAMES = SETS[Family.IPV4]


def fates(mirror: Mirror) -> dict[tuple[object, object], Fate]:
    return {
        (source, destination): fate_by_sets(mirror.elements(), source, destination)
        for source in SOURCES
        for destination in DESTINATIONS
        if source.version == destination.version
    }


def exchanges_ranges(old: PolicyView | None, new: PolicyView, before: World, after: World) -> bool:
    """Whether a policy gets some ranges and loses others, which are then one step, before or after those of others."""
    if old is None:
        return False
    for family in Family:
        had = find_destinations(old, family, cluster_spans(before.cluster, family))
        has = find_destinations(new, family, cluster_spans(after.cluster, family))
        if any(set(a) - set(b) and set(b) - set(a) for a, b in ((had.beyond, has.beyond), (had.within, has.within))):
            return True
    return False


@settings(max_examples=300, deadline=None)
@given(worlds(), worlds(), st.integers(1, 8))
def test_no_packet_is_without_a_way_between_two(before: World, after: World, limit: int) -> None:
    """That has one before and after; and of what does not concern it, it does not know."""
    old = {policy.ref: policy for policy in before.policies}
    after = replace(after, cluster=before.cluster)
    assume(not any(exchanges_ranges(old.get(policy.ref), policy, before, after) for policy in after.policies))
    assume(not any(policy.pod_subnets for policy in (*before.policies, *after.policies)))
    index, mirror = DataPlaneIndex(clock=time.monotonic), Mirror()
    tell(index, before)
    mirror.apply(index.take_changes())
    first = fates(mirror)
    tell(index, after)
    changes = index.take_changes()
    steps = list(split_changes(changes, limit=limit))
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
    first, *rest = split_changes(changes, limit=2)
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
    steps = list(split_changes(ElementChanges(adds=adds), limit=1))
    assert [len(step) for step in steps] == [1] * 6
    assert touched(steps[-1]) == {NAMES.classes}
    going = ElementChanges(deletes={name: tuple(words) for name, words in adds.items()})
    steps = list(split_changes(going, limit=33))
    assert touched(steps[0]) == {NAMES.classes}
    assert not any(NAMES.classes in touched(step) for step in steps[1:])


def test_a_policy_changes_in_one_step() -> None:
    deletes = {NAMES.ways: ("5:1", "6:1"), NAMES.eips: ("5:1", "6:1")}
    adds: dict[SetName, dict[ElementKey, ElementValue]] = {
        NAMES.ways: {"5:1": 1, "6:1": 2},
        NAMES.eips: {"5:1": "192.0.2.1", "6:1": "192.0.2.2"},
    }
    steps = list(split_changes(ElementChanges(deletes=deletes, adds=adds), limit=4))
    assert [{*step.adds[NAMES.ways], *step.adds[NAMES.eips]} for step in steps] == [{"5:1"}, {"6:1"}]


def test_few_changes_are_one_step() -> None:
    changes = ElementChanges(deletes={NAMES.classes: ("10.1.0.1",)}, adds={NAMES.classes: {"10.1.0.1": "5:1"}})
    assert list(split_changes(changes)) == [changes]
    assert list(split_changes(ElementChanges())) == []


def test_a_tenant_of_many_ranges_keeps_nobody_waiting() -> None:
    """All of them go: the kernel takes several times as long for one of these."""
    words: tuple[ElementKey, ...] = tuple(("5:1", f"8.8.{number // 256}.{number % 256}") for number in range(1024))
    steps = list(split_changes(ElementChanges(deletes={NAMES.ranges[5]: words})))
    assert max(map(len, steps)) * 32 <= STEP
    assert sum(map(len, steps)) == len(words)
