"""The crowd that both sides are loaded with: the node's book, and the peer's texts, say the same."""

import re
from collections import Counter

import pytest

from coil.eip.eip_set import CLOSED_WORD, HERE, SETS
from coil.kernel.family import Family
from integration.bench import eip_rule_text
from integration.bench.eip_crowd import (
    DESTINATION_RANGE,
    DESTINATIONS,
    LOCAL_PODS,
    MARK_THERE,
    POD_RANGE,
    PODS,
    Crowd,
    destinations,
    eip_address,
    pod_address,
)

NAMES = SETS[Family.IPV4]


@pytest.mark.parametrize("policies", [1, 3])
def test_the_index_has_what_concerns_the_node(policies: int) -> None:
    elements = Crowd(policies=policies).index().elements()
    # All pods of its own policies, and one pod of each of the other gateway's.
    assert len(elements[NAMES.classes]) == policies * (LOCAL_PODS + 1)
    assert len(elements[NAMES.remote_classes]) == policies * (PODS - LOCAL_PODS)
    marks = {word: mark for word, mark in elements[NAMES.ways].items() if word != CLOSED_WORD}
    chosen = Counter(marks[str(policy)] for name in NAMES.ranges for policy in elements.get(name, {}).values())
    ours = policies * DESTINATIONS
    assert chosen == {HERE: ours, MARK_THERE: ours}
    assert len(elements[NAMES.guarded]) == 2 * ours
    assert set(elements[NAMES.eips].values()) == {str(eip_address(number)) for number in range(policies)}


@pytest.mark.parametrize("policies", [1, 3])
def test_the_sets_have_the_same_pods(policies: int) -> None:
    crowd = Crowd(policies=policies)
    entries = re.findall(r"^add \S+-src (\S+)$", eip_rule_text.full_sets(crowd), re.MULTILINE)
    elements = crowd.index().elements()
    remote = {key[1] for key in elements[NAMES.remote_classes]}
    assert set(entries) == elements[NAMES.classes].keys() | remote
    assert len(entries) == len(set(entries))


def test_a_rule_for_each_policy() -> None:
    rules = eip_rule_text.full_rules(Crowd(policies=3))
    assert rules.count(" -j MARK --set-xmark 0x26000200/") == 3
    assert [f"--to-source {eip_address(number)}" in rules for number in range(4)] == [True, True, True, False]
    sets = eip_rule_text.full_sets(Crowd(policies=3))
    assert set(re.findall(r"--match-set (\S+)", rules)) == set(re.findall(r"^create (\S+)", sets, re.M))


def test_a_change_touches_one_pod_one_destination_and_one_rule() -> None:
    crowd = Crowd(policies=3)
    text = eip_rule_text.changed_sets(1, crowd=crowd, back=False)
    assert text.splitlines() == [
        f"del egress-v4-0001-src {pod_address(1, 0)}",
        "del egress-v4-0001-dst 172.27.185.0/24",
        f"add egress-v4-0001-src {pod_address(1, PODS)}",
        "add egress-v4-0001-dst 172.27.185.0/25",
    ]
    back = eip_rule_text.changed_sets(1, crowd=crowd, back=True)
    assert {turned(line) for line in back.splitlines()} == set(text.splitlines())
    assert "-R egress-snat 2 " in eip_rule_text.changed_rules(1, back=False)


def turned(line: str) -> str:
    """The command that undoes it."""
    verb, entry = line.split(" ", 1)
    return f"{'add' if verb == 'del' else 'del'} {entry}"


def test_addresses_do_not_meet() -> None:
    crowd = Crowd(policies=1000)
    assert pod_address(1999, PODS) in POD_RANGE
    assert pod_address(0, PODS) < pod_address(1, 0)
    networks = [network for number in crowd.here() for network in destinations(number)]
    assert len(set(networks)) == 4000
    assert all(network.subnet_of(DESTINATION_RANGE) for network in networks)
    assert not POD_RANGE.overlaps(DESTINATION_RANGE)


@pytest.mark.parametrize("policies", [1, 10, 1000])
def test_travellers_are_local_pods_of_many_policies(policies: int) -> None:
    found = list(Crowd(policies=policies).travellers(32))
    assert {str(source) for source, _ in found} <= Crowd(policies=policies).index().elements()[NAMES.classes].keys()
    assert len({source for source, _ in found}) == 32
    numbers = {(int(source) - int(POD_RANGE[0])) // 128 for source, _ in found}
    assert len(numbers) == min(32, policies)
    for source, destination in found:
        number = (int(source) - int(POD_RANGE[0])) // 128
        assert any(destination in network for network in destinations(number))
