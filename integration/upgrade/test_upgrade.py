"""An upgrade from the former release by Helm, and the way back, under pods that run and talk: nothing is lost."""

from collections.abc import Mapping
from typing import Any

import pytest

from integration.nodes.eip_gateway import eip_of
from integration.upgrade.cooling_block import FIRST, GONE, NEXT
from integration.upgrade.scene import View, used_addresses
from integration.upgrade.story import Change, Story

pytestmark = pytest.mark.cluster

CONTROLLER_LEASES = "kube-system/coil-"
GATEWAY_LEASES = "coil-eip-leases/"


def test_no_pod_is_restarted_and_none_loses_its_address(change: Change) -> None:
    assert len(change.before.pods) == 14
    assert change.after.pods == change.before.pods


def test_an_upgrade_takes_nothing_out_of_the_kernels_and_a_rollback_what_was_new(story: Story) -> None:
    upgrade, rollback = story.chapter("upgrade"), story.chapter("rollback")
    assert {"node-1", "node-2"} < upgrade.before.kernels.keys()
    assert sorted(upgrade.differences.lost) == []
    # Chains and sets that the former release did not have.
    assert sorted(upgrade.differences.foreign) == []
    assert rollback.differences.describe() == upgrade.differences.reverse.describe()


def test_no_connection_breaks_and_no_byte_is_lost(change: Change, story: Story) -> None:
    before, after = change.counts
    assert len(before) == 4
    assert {name for name, count in before.items() if after[name] <= count} == set()
    # Those that leave the cluster do so as the floating addresses.
    assert change.seen >= {eip_of(story.scene.coil, family) for family in (4, 6)}


def test_every_pod_is_reached_in_each_family(change: Change) -> None:
    assert change.gaps == []


def test_who_has_had_which_address_since_when_is_still_known(change: Change) -> None:
    uses = [use for pools in change.before.addresses.values() for use in used_addresses(pools)]
    named = [use for use in uses if use["state"] == "allocated"]
    assert len(named) >= len(change.before.pods)
    assert all(use["pod"] and use["since"] for use in named)
    assert change.after.addresses == change.before.addresses


def test_an_address_that_is_cooling_down_is_not_given_out_and_the_search_goes_on_where_it_was(change: Change) -> None:
    slots = change.cooling.slots()
    assert {pod: slots[pod] for pod in FIRST if pod not in GONE} == {
        "first-0": (0, 0),
        "first-1": (0, 1),
        "first-3": (0, 3),
    }
    # The last two free slots and no other; then the block counts as full.
    assert [slots[pod] for pod in NEXT] == [(0, 5), (0, 6), (0, 7), (1, 0)]
    assert change.cooling.cooling() == [2, 4]


def test_there_is_one_leader_at_a_time_by_the_same_leases(change: Change) -> None:
    before, after = (leases(view, CONTROLLER_LEASES) for view in (change.before, change.after))
    assert len(before) == 2
    assert uids(after) == uids(before)
    assert change.witness.overlaps == []
    for name, lease in before.items():
        was, now = lease["spec"], after[name]["spec"]
        assert now["holderIdentity"] not in ("", was["holderIdentity"])
        assert now.get("leaseTransitions", 0) > was.get("leaseTransitions", 0)


def test_floating_addresses_go_from_node_to_node_and_each_node_keeps_its_lease(change: Change) -> None:
    # A gateway that stops hands them on, and one stops after the other.
    moves = change.witness.holders["floating addresses"]
    assert moves[0] == "node-1"
    assert 1 <= len(moves) <= 3
    before, after = (leases(view, GATEWAY_LEASES) for view in (change.before, change.after))
    assert uids(after) == uids(before)
    assert len(before) == 2
    for name, lease in before.items():
        was, now = lease["spec"], after[name]["spec"]
        assert now["holderIdentity"] == was["holderIdentity"]
        assert now.get("leaseDurationSeconds") == was.get("leaseDurationSeconds")
        assert now.get("leaseTransitions", 0) >= was.get("leaseTransitions", 0)


def test_every_metric_is_still_exported_with_its_labels(story: Story) -> None:
    # A rollback takes those away again that were new.
    change = story.chapter("upgrade")
    faults = []
    for program, metrics in change.before.metrics.items():
        now = change.after.metrics[program]
        assert metrics, f"{program} exported nothing"
        for name, metric in metrics.items():
            if name not in now:
                faults.append(f"{program} does not export {name} any more")
            elif now[name].type != metric.type or (now[name].labels and metric.labels - now[name].labels):
                faults.append(f"{program} exports {now[name]} instead of {metric}")
    assert faults == []


def test_no_program_was_started_twice_or_complained(change: Change) -> None:
    assert set(change.restarts.values()) == {0}
    assert change.complaints == []


def test_pods_that_the_other_release_attached_are_detached(change: Change, story: Story) -> None:
    room = change.cooling.room
    assert "first-0" in {pod.name for pod in room.pods()}
    story.scene.detach(room, "first-0")


def leases(view: View, prefix: str) -> dict[str, Mapping[str, Any]]:
    """Those whose namespace and name begin so."""
    return {name: lease for name, lease in view.leases.items() if name.startswith(prefix)}


def uids(objects: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By name: an object that was made anew has another one."""
    return {name: each["metadata"]["uid"] for name, each in objects.items()}
