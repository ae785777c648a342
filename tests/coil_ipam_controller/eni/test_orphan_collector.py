"""Orphaned interfaces are deleted, and no other: by tag, by age, after a second look, on a leader."""

import asyncio
from itertools import pairwise

import pytest

from coil.aws.ec2 import InstanceId
from coil.eni.interface import InterfaceId
from coil.eni.orphan import ORPHAN_SECONDS
from coil.eni.tag import CLUSTER_TAG
from coil_ipam_controller.eni.leader import BACKOFF, ROUND_SECONDS
from coil_ipam_controller.eni.orphan_collector import DELETIONS
from tests.coil.aws.memory_ec2 import Moment
from tests.coil.aws.memory_ec2_client import MemoryEc2Client
from tests.coil_ipam_controller.eni.scene import CLUSTER, Scene, play

LONG = ORPHAN_SECONDS + 2 * ROUND_SECONDS


def test_an_interface_whose_instance_has_gone_is_deleted_and_told() -> None:
    async def script(scene: Scene) -> None:
        subnet = scene.ec2.subnet("10.1.0.0/24")
        orphan = await scene.make(subnet)
        await asyncio.sleep(ORPHAN_SECONDS - 2)
        assert orphan in scene.there(), "so long as this leader has not seen it for five minutes"
        assert scene.view.unattached == 1
        await asyncio.sleep(LONG)
        assert scene.there() == set()
        assert scene.view.unattached == 0
        [told] = scene.recorder.told
        assert (told.kind, told.name, told.reason) == ("Namespace", "kube-system", "InterfacesCollected")
        assert orphan in told.message
        assert scene.value("coil_controller_eni_collected_interfaces_total") == 1
        assert "orphaned interface deleted" in scene.logged()

    play(script)


def test_what_others_have_is_never_touched() -> None:
    async def script(scene: Scene) -> None:
        subnet = scene.ec2.subnet("10.1.0.0/24")
        kept = {
            await scene.make(subnet, cluster="green"),
            await scene.make(subnet, cluster=""),
            (await scene.make_with(subnet, {CLUSTER_TAG: CLUSTER})).id,
            (await scene.make_with(subnet, {})).id,
        }
        await asyncio.sleep(10 * LONG)
        assert scene.there() == kept
        assert scene.ec2.count("DeleteNetworkInterface") == 0

    play(script)


def test_one_in_use_is_never_touched() -> None:
    async def script(scene: Scene) -> None:
        subnet = scene.ec2.subnet("10.1.0.0/24")
        instance = InstanceId(scene.ec2.launch("m5.large", subnet))
        used = await scene.make(subnet)
        await MemoryEc2Client(scene.ec2).attach_interface(used, instance, device=1)
        await asyncio.sleep(10 * LONG)
        assert used in scene.there()
        assert scene.ec2.count("DeleteNetworkInterface") == 0

    play(script)


@pytest.mark.parametrize("moment", ["DescribeNetworkInterfaces", "DeleteNetworkInterface"])
def test_one_that_a_node_takes_back_at_the_last_moment_stays(moment: str) -> None:
    async def script(scene: Scene) -> None:
        subnet = scene.ec2.subnet("10.1.0.0/24")
        instance = InstanceId(scene.ec2.launch("m5.large", subnet))
        orphan = await scene.make(subnet)
        looks = 0

        async def attach(action: str, when: Moment) -> None:
            nonlocal looks
            if when is not Moment.BEFORE or action != moment:
                return
            looks += asyncio.get_running_loop().time() >= ORPHAN_SECONDS
            # Of the looks of the round that would delete it, before the second.
            if looks == (2 if action == "DescribeNetworkInterfaces" else 1):
                scene.ec2.attach(orphan, instance, 1)

        scene.ec2.gate = attach
        await asyncio.sleep(3 * LONG)
        assert looks
        assert orphan in scene.there()
        assert scene.recorder.reasons == []

    play(script)


def test_a_round_deletes_some_and_the_next_ones_the_rest() -> None:
    async def script(scene: Scene) -> None:
        subnet = scene.ec2.subnet("10.1.0.0/24")
        for _ in range(DELETIONS + 5):
            await scene.make(subnet)
        seen = [len(scene.there())]
        while seen[-1]:
            await asyncio.sleep(ROUND_SECONDS)
            seen.append(len(scene.there()))
        assert max(before - after for before, after in pairwise(seen)) == DELETIONS
        assert scene.value("coil_controller_eni_collected_interfaces_total") == DELETIONS + 5

    play(script)


def test_one_that_cannot_be_deleted_does_not_keep_the_others() -> None:
    async def script(scene: Scene) -> None:
        subnet = scene.ec2.subnet("10.1.0.0/24")
        orphans = {await scene.make(subnet) for _ in range(3)}
        scene.ec2.faults.refusals["DeleteNetworkInterface"] = ["OperationNotPermitted"]
        await asyncio.sleep(ORPHAN_SECONDS + 1)
        assert len(scene.there() & orphans) == 1
        assert "OperationNotPermitted" in scene.view.troubles["orphans"]
        await asyncio.sleep(2 * ROUND_SECONDS)
        assert scene.there() == set()
        assert scene.view.troubles == {}

    play(script)


def test_after_a_round_of_those_that_cannot_be_deleted_comes_the_turn_of_the_others() -> None:
    async def script(scene: Scene) -> None:
        subnet = scene.ec2.subnet("10.1.0.0/24")
        *_, last = sorted([await scene.make(subnet) for _ in range(DELETIONS + 1)])
        scene.ec2.faults.refusals["DeleteNetworkInterface"] = ["OperationNotPermitted"] * DELETIONS
        await asyncio.sleep(ORPHAN_SECONDS + 1)
        assert scene.ec2.count("DeleteNetworkInterface") == DELETIONS
        seen = [scene.there()]
        while len(seen[-1]) > 1:
            await asyncio.sleep(1)
            seen.append(scene.there())
        assert len(seen[0]) == DELETIONS + 1
        assert last not in seen[-1]

    play(script)


def test_throttling_ends_a_round_and_is_followed_by_a_backoff() -> None:
    async def script(scene: Scene) -> None:
        scene.ec2.subnet("10.1.0.0/24")
        scene.ec2.faults.throttled = 1.0
        await asyncio.sleep(3600)
        # Two parts, whose pauses grow to five minutes.
        assert scene.ec2.count() <= 2 * (3600 / (BACKOFF.cap * (1 - BACKOFF.jitter)) + 8)
        assert set(scene.view.troubles) == {"orphans", "subnets"}
        assert scene.value("coil_controller_eni_failures_total", part="orphans")
        assert scene.logged().count("EC2 cannot be asked") == 2, "the first of a row of each"
        scene.ec2.faults.throttled = 0.0
        await asyncio.sleep(2 * BACKOFF.cap)
        assert scene.view.troubles == {}

    play(script)


def test_a_denied_call_is_an_event_that_names_the_action() -> None:
    async def script(scene: Scene) -> None:
        scene.ec2.faults.refusals["DescribeNetworkInterfaces"] = ["UnauthorizedOperation"]
        await asyncio.sleep(1)
        [told] = scene.recorder.told
        assert told.reason == "Ec2CallDenied"
        assert "ec2:DescribeNetworkInterfaces" in told.message

    play(script)


def test_it_begins_without_the_metadata_service_and_without_ec2() -> None:
    async def script(scene: Scene) -> None:
        scene.refused = 3
        scene.ec2.reachable = False
        await asyncio.sleep(1)
        assert "metadata" in scene.view.troubles["connection"]
        await asyncio.sleep(3600)
        assert scene.connections == 4
        assert set(scene.view.troubles) == {"orphans", "subnets"}
        scene.ec2.reachable = True
        orphan = await scene.make(scene.ec2.subnet("10.1.0.0/24"))
        await asyncio.sleep(BACKOFF.cap + LONG)
        assert orphan not in scene.there()
        assert scene.view.troubles == {}

    play(script)


def test_a_new_leader_counts_anew() -> None:
    async def script(scene: Scene) -> None:
        orphan: InterfaceId = await scene.make(scene.ec2.subnet("10.1.0.0/24"))
        await asyncio.sleep(ORPHAN_SECONDS - 10)
        other = Scene(scene.ec2)
        successor = asyncio.create_task(other.leader().run())
        await asyncio.sleep(1)
        assert other.view.unattached == 1
        assert orphan in scene.there()
        successor.cancel()
        await asyncio.wait({successor})
        assert other.recorder.told == []

    play(script)
