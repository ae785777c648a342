"""A node that is about to leave keeps its interfaces attached: they go with its instance, and none stays behind."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from coil.aws.ec2 import InterfaceRecord
from coil.crd.builtin import NODES
from coil.eni.orphan import ORPHAN_SECONDS
from coil.eni.surplus import SURPLUS_SECONDS
from coil.eni.warm_pool import WarmTargets
from coil.kube.errors import UnavailableError
from coil_ipam_controller.eni.orphan_collector import OrphanCollector
from coild.eni.departure import NO_ANSWER, REMOVAL_TAINTS, NodeDeparture, find_removal
from coild.eni.settings import EniSettings
from tests.coil.aws.memory_ec2 import MemoryEc2, Moment
from tests.coil.aws.memory_metadata import MemoryMetadata
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient
from tests.coil.kube.memory_api import Moment as ApiMoment
from tests.coil_ipam_controller.eni.scene import Scene as LeaderScene
from tests.coild.eni.node import loop_time
from tests.coild.eni.provisioner_scene import CLUSTER, NODE, Scene

SETTINGS = EniSettings(cluster=CLUSTER, targets=WarmTargets(ips=2))


async def idle(path: Path) -> Scene:
    """A node with two interfaces, whose pods have gone: in a while the second interface is given back."""
    scene = Scene(path / "journal", settings=SETTINGS)
    await scene.boot()
    await scene.add_many([f"pod-{number}" for number in range(10)])
    await scene.rest(10.0)
    for number in range(10):
        scene.delete(f"pod-{number}")
    assert len(scene.records()) == 2
    return scene


def left(scene: Scene) -> list[InterfaceRecord]:
    """The interfaces that no instance has."""
    return [each for each in scene.ec2.records() if each.instance is None]


async def test_a_node_that_stays_gives_an_idle_interface_back(tmp_path: Path) -> None:
    scene = await idle(tmp_path)
    await scene.rest(SURPLUS_SECONDS + 200.0)
    assert (len(scene.records()), left(scene)) == (1, [])
    await scene.kill()


@pytest.mark.parametrize("sign", ["cordon", "taint", "deletion", "spot", "rebalance", "SIGTERM", "silence", "API"])
async def test_a_node_that_leaves_detaches_nothing_and_leaves_nothing(tmp_path: Path, sign: str) -> None:
    """Nor does one of which nobody can say; afterwards, one that stays all the same goes on."""
    scene = await idle(tmp_path)
    match sign:
        case "cordon":
            scene.report(unschedulable=True)
        case "taint":
            scene.report(taints=[{"key": REMOVAL_TAINTS[0], "effect": "NoSchedule", "value": "1900000000"}])
        case "deletion":
            document = {"metadata": {"name": NODE, "deletionTimestamp": "2030-01-01T00:00:00Z", "finalizers": ["x"]}}
            scene.api.put(NODES, document)
        case "spot" | "rebalance":
            scene.metadata.notice = sign
        case "SIGTERM":
            scene.stopping = True
        case "silence":
            scene.metadata.reachable = False
        case "API":
            scene.api.remove(NODES, NODE)
    await scene.rest(SURPLUS_SECONDS + 600.0)
    assert scene.count("DetachNetworkInterface") == 0
    await scene.kill()
    scene.ec2.terminate(scene.instance)
    assert scene.ec2.records() == []


async def test_one_that_stays_after_all_gives_the_interface_back(tmp_path: Path) -> None:
    scene = await idle(tmp_path)
    scene.report(unschedulable=True)
    await scene.rest(SURPLUS_SECONDS + 600.0)
    assert len(scene.records()) == 2
    scene.report()
    await scene.rest(100.0)
    assert len(scene.records()) == 1
    scene.check_settled()
    await scene.kill()


async def test_what_a_node_has_left_that_ended_between_detach_and_delete_is_collected(tmp_path: Path) -> None:
    scene = await idle(tmp_path)
    detached = asyncio.Event()

    async def gate(action: str, moment: Moment) -> None:
        if action == "DetachNetworkInterface" and moment is Moment.AFTER:
            detached.set()
            await asyncio.get_running_loop().create_future()

    scene.ec2.gate = gate
    await detached.wait()
    await scene.kill()
    scene.ec2.terminate(scene.instance)
    [orphan] = left(scene)
    assert orphan.tags.items() >= scene.own_tags().items()
    assert scene.ec2.records() == [orphan]

    leader = LeaderScene(scene.ec2)
    leader.view.cluster = CLUSTER
    wall = scene.node.wall
    collector = OrphanCollector(replace(leader.deps(), now=lambda: datetime.fromtimestamp(wall + loop_time(), UTC)))
    await collector.round(scene.admin)
    await asyncio.sleep(ORPHAN_SECONDS)
    await collector.round(scene.admin)
    assert scene.ec2.records() == []


class TestReason:
    """Who is asked, and what counts."""

    @pytest.mark.parametrize(
        ("node", "reason"),
        [
            ({}, None),
            ({"spec": {"taints": [{"key": "node.kubernetes.io/not-ready"}]}}, None),
            ({"spec": {"taints": [{"key": "DeletionCandidateOfClusterAutoscaler"}]}}, None),
            ({"spec": {"taints": [{"key": "karpenter.sh/disrupted"}]}}, "karpenter.sh/disrupted"),
            ({"spec": {"taints": [{"key": "aws-node-termination-handler/spot-itn"}]}}, "spot-itn"),
            ({"spec": {"unschedulable": True}}, "cordoned"),
            ({"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}}, "being deleted"),
        ],
    )
    def test_of_a_node_object(self, node: dict[str, Any], reason: str | None) -> None:
        found = find_removal(node)
        assert (found is None) == (reason is None)
        assert reason is None or reason in (found or "")

    async def test_an_api_server_that_does_not_answer_keeps_nobody_waiting(self) -> None:
        async def gate(call: Call, moment: ApiMoment) -> None:
            await asyncio.get_running_loop().create_future()

        departure = self.departure(gate)
        asked = asyncio.get_running_loop().time()
        assert NO_ANSWER in (await departure.reason() or "")
        assert asyncio.get_running_loop().time() - asked <= 10.0

    async def test_an_api_server_that_answers_with_an_error_does_not_say_that_the_node_stays(self) -> None:
        async def gate(call: Call, moment: ApiMoment) -> None:
            raise UnavailableError("etcd has no leader")

        assert "etcd has no leader" in (await self.departure(gate).reason() or "")

    async def test_who_was_told_to_end_while_others_were_asked_does_not_stay(self) -> None:
        stopping = asyncio.Event()

        async def gate(call: Call, moment: ApiMoment) -> None:
            stopping.set()

        assert "told to end" in (await self.departure(gate, stopping).reason() or "")

    def departure(self, gate: Any, stopping: asyncio.Event | None = None) -> NodeDeparture:
        ec2 = MemoryEc2()
        api = MemoryApi()
        api.put(NODES, {"metadata": {"name": NODE}})
        metadata = MemoryMetadata(ec2, ec2.launch("m5.large", ec2.subnet("10.1.0.0/24")))
        is_stopping = stopping.is_set if stopping is not None else lambda: False
        return NodeDeparture(MemoryClient(api, gate), metadata, node=NODE, stopping=is_stopping)
