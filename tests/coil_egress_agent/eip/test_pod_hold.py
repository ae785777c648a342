"""What may come from a pod that has just started is held back until the kernel has the pod."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from coil.crd.builtin import PodCondition, PodIP, PodSpec, PodStatus
from coil.crd.egress_gateway_policy import AppliedTo
from coil.crd.meta import LabelSelector, ObjectMeta
from coil.kube.errors import UnavailableError
from coil_egress_agent.eip.node_pods import NodePod
from coil_egress_agent.eip.pod_hold import PASS_SECONDS
from tests.coil_egress_agent.eip.node_scene import Scene, eip, endpoints, gateway, listed, policy, running, until

ADDRESS = "10.244.1.9"
OTHER = "10.244.1.10"
WEB = {"app": "web"}
TIME = datetime(2026, 1, 1, tzinfo=UTC)


def pod(name: str = "new", *, address: str = "", labels: dict[str, str] = WEB, **changes: Any) -> NodePod:
    """As the API server has it; without an address while its sandbox is being made."""
    return NodePod(
        metadata=ObjectMeta(name=name, namespace="t1", labels=labels, uid=name, **changes.pop("metadata", {})),
        spec=PodSpec(node_name="n1", **changes.pop("spec", {})),
        status=PodStatus(pod_ips=(PodIP(ip=address),) if address else (), **changes),
    )


def scene_of(*, fail_policy: str = "Closed", **spec: Any) -> Scene:
    """A policy selects web; it leads to another node."""
    scene = Scene()
    scene.cluster.gateways.put(gateway(listed("n2", eip()), fail_policy=fail_policy))
    selector = AppliedTo(pod_selector=LabelSelector(match_labels=WEB))
    scene.cluster.policies.put(policy(applied_to=selector, **spec))
    return scene


async def test_until_its_address_is_in_the_kernel() -> None:
    scene = scene_of()
    tables = scene.agent.tables
    async with running(scene):
        await until(lambda: tables.current)
        scene.cluster.pods.put(pod())
        await until(lambda: not tables.current, seconds=0.1)
        await asyncio.sleep(10 * PASS_SECONDS)
        assert not tables.current
        scene.cluster.pods.put(pod(address=ADDRESS))
        await until(lambda: tables.current, seconds=1.0)
        # Before the controller has told of it.
        assert {*tables.of("class4")} == {*tables.of("known4")} == {ADDRESS}
        await asyncio.sleep(10 * PASS_SECONDS)
        assert tables.current


async def test_what_the_kernel_does_not_take_is_not_there() -> None:
    scene = scene_of()
    async with running(scene):
        await until(lambda: scene.agent.tables.current)
        scene.cluster.pods.put(pod())
        await until(lambda: not scene.agent.tables.current, seconds=0.1)
        scene.journal.refuse |= {"change", "sync"}
        scene.cluster.pods.put(pod(address=ADDRESS))
        await asyncio.sleep(10)
        assert not scene.agent.tables.current
        scene.journal.refuse.clear()
        await until(lambda: scene.agent.tables.current)
        assert ADDRESS in scene.agent.tables.of("class4")


async def test_a_sandbox_that_is_made_again_may_have_another_address() -> None:
    scene = scene_of()
    gone = PodCondition(type="PodReadyToStartContainers", status="False")
    scene.cluster.pods.put(pod(address=ADDRESS))
    async with running(scene):
        await until(lambda: scene.agent.tables.current)
        scene.cluster.pods.put(pod(address=ADDRESS, conditions=(gone,)))
        await until(lambda: not scene.agent.tables.current, seconds=0.1)
        scene.cluster.pods.put(pod(address=OTHER))
        await until(lambda: scene.agent.tables.current, seconds=1.0)
        assert {*scene.agent.tables.of("class4")} == {OTHER}


@pytest.mark.parametrize(
    "other",
    [
        pod(labels={"app": "other"}),
        pod(spec={"host_network": True}),
        pod(phase="Succeeded"),
        pod(address=ADDRESS),
    ],
    ids=["not selected", "host network", "finished", "has an address"],
)
async def test_only_pods_that_a_policy_selects_and_that_have_an_address_to_come(other: NodePod) -> None:
    scene = scene_of()
    async with running(scene):
        await until(lambda: scene.agent.tables.current)
        scene.journal.clear()
        scene.cluster.pods.put(other)
        await asyncio.sleep(1.0)
        assert ("let pass", 0.0) not in [entry[1:] for entry in scene.journal.entries]


async def test_an_address_of_a_pod_that_is_being_deleted_may_be_the_next_ones() -> None:
    scene = scene_of()
    other = pod("other", address=OTHER, labels={})
    scene.cluster.pods.put(other)
    async with running(scene):
        await until(lambda: OTHER in scene.agent.tables.of("known4"))
        scene.cluster.pods.put(pod("other", address=OTHER, labels={}, metadata={"deletion_timestamp": TIME}))
        await until(lambda: OTHER not in scene.agent.tables.of("known4"), seconds=1.0)


async def test_while_the_api_server_cannot_be_watched_nobody_knows_which_pods_there_are() -> None:
    scene = scene_of()
    async with running(scene):
        await until(lambda: scene.agent.tables.current)
        scene.cluster.pods.last_error = UnavailableError("no answer")
        await asyncio.sleep(2 * PASS_SECONDS)
        assert not scene.agent.tables.current
        scene.cluster.pods.last_error = None
        await until(lambda: scene.agent.tables.current)


async def test_it_expires_with_the_agent() -> None:
    scene = scene_of()
    async with running(scene):
        await until(lambda: scene.agent.tables.current)
    await asyncio.sleep(PASS_SECONDS)
    assert not scene.agent.tables.current


async def test_pods_of_this_node_and_the_slices_of_others() -> None:
    scene = scene_of()
    scene.cluster.slices.put(endpoints(("10.244.1.5", "n1")))
    scene.cluster.pods.put(pod(address=ADDRESS))
    async with running(scene):
        await until(lambda: {*scene.agent.tables.of("class4")} == {"10.244.1.5", ADDRESS})
        scene.cluster.pods.remove("t1/new")
        await until(lambda: {*scene.agent.tables.of("class4")} == {"10.244.1.5"})


def guarded(scene: Scene) -> dict[str, set[str]]:
    """What unknown sources are held back from, by set."""
    elements = scene.agent.tables.elements
    return {
        name.name: {str(key) for key in words}
        for name, words in elements.items()
        if words and name.name.startswith("guarded")
    }


async def test_they_are_held_back_from_the_destinations_of_policies_that_fail_closed() -> None:
    scene = scene_of(destinations=("8.8.8.0/24", "2001:db8::/64"))
    scene.cluster.policies.put(policy("p2", destinations=("8.8.9.0/24",)))
    async with running(scene):
        # The gateway has IPv4 addresses only, and drops the rest.
        networks = {"guarded4": {"8.8.8.0/24", "8.8.9.0/24"}, "guarded6": {"2001:db8::/64"}}
        await until(lambda: guarded(scene) == networks)
        scene.cluster.policies.put(policy("p3", destinations=()))
        # Its gateway is not known, and so no family that it is not about.
        await until(lambda: guarded(scene).get("guarded_all") == {"ipv4", "ipv6"})
        for name in ("p1", "p2", "p3"):
            scene.cluster.policies.remove(f"t1/{name}")
        await until(lambda: guarded(scene) == {})


async def test_not_from_those_of_gateways_that_fail_open_and_of_policies_without_pods() -> None:
    scene = scene_of(fail_policy="Open")
    subnets = AppliedTo(pod_subnet=("10.9.0.0/16",))
    scene.cluster.gateways.put(gateway(name="eg2"))
    async with running(scene):
        await until(lambda: scene.agent.tables.current)
        assert guarded(scene) == {}
        scene.cluster.gateways.put(gateway(listed("n2", eip()), revision=2))
        await until(lambda: guarded(scene) != {})
        scene.cluster.policies.put(policy(applied_to=subnets))
        await until(lambda: guarded(scene) == {})
