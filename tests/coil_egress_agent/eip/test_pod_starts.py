"""When a pod may start of which coild has told."""

import asyncio

import pytest

from coil.crd.builtin import MIRROR_POD, STATIC_POD_UID
from coil.eip.pod_start import PodStart
from coil_egress_agent.eip.pod_starts import PodRefusedError, PodStarts
from tests.coil_egress_agent.eip.node_scene import Scene, running, until
from tests.coil_egress_agent.eip.test_pod_hold import ADDRESS, OTHER, pod, scene_of


def start(name: str = "new", *addresses: str, uid: str = "") -> PodStart:
    return PodStart(namespace="t1", name=name, uid=uid, addresses=addresses or (ADDRESS,))


def starts_of(scene: Scene) -> PodStarts:
    return PodStarts(scene.agent.node_pods, scene.agent.pod_hold)


async def test_a_pod_starts_when_the_kernel_has_its_address() -> None:
    scene = scene_of()
    starts = starts_of(scene)
    scene.cluster.pods.put(pod())
    async with running(scene):
        await until(lambda: scene.agent.tables.exists)
        scene.journal.stall["change"] = 2.0
        began = asyncio.get_running_loop().time()
        await starts.enter(start())
        assert asyncio.get_running_loop().time() - began >= 2.0
        assert {*scene.agent.tables.of("class4")} == {ADDRESS}
        await until(lambda: scene.agent.tables.current, seconds=1.0)


async def test_it_waits_until_the_api_server_has_told_of_the_pod() -> None:
    scene = scene_of()
    starts = starts_of(scene)
    async with running(scene):
        await until(lambda: scene.agent.tables.current)
        entering = asyncio.create_task(starts.enter(start(uid="new")))
        scene.cluster.pods.put(pod(labels={}, metadata={"annotations": {}}))
        await asyncio.sleep(1.0)
        assert entering.done()
        with pytest.raises(PodRefusedError, match="has not told of pod t1/other within 10 s"):
            await starts.enter(start("other"))


async def test_a_pod_of_that_name_is_not_its_successor() -> None:
    scene = scene_of()
    starts = starts_of(scene)
    scene.cluster.pods.put(pod())
    async with running(scene):
        await until(lambda: scene.agent.tables.exists)
        with pytest.raises(PodRefusedError):
            await starts.enter(start(uid="another"))
        mirror = {MIRROR_POD: "hash", STATIC_POD_UID: "hash"}
        scene.cluster.pods.put(pod(metadata={"annotations": mirror}))
        await starts.enter(start(uid="hash"))


async def test_a_kernel_that_refuses() -> None:
    scene = scene_of()
    starts = starts_of(scene)
    scene.cluster.pods.put(pod())
    async with running(scene):
        await until(lambda: scene.agent.tables.exists)
        scene.journal.refuse |= {"change", "sync"}
        with pytest.raises(PodRefusedError, match="the kernel does not have its addresses within 10 s"):
            await starts.enter(start())
        scene.journal.refuse.clear()
        await starts.enter(start())


async def test_a_pod_that_no_policy_selects_waits_for_nothing() -> None:
    scene = scene_of()
    starts = starts_of(scene)
    scene.cluster.pods.put(pod(labels={}))
    async with running(scene):
        await until(lambda: scene.agent.tables.current)
        scene.journal.stall["change"] = 20.0
        began = asyncio.get_running_loop().time()
        await starts.enter(start())
        assert asyncio.get_running_loop().time() == began


async def test_an_address_is_the_last_pods_that_was_given_it() -> None:
    scene = scene_of()
    starts = starts_of(scene)
    scene.cluster.pods.put(pod())
    scene.cluster.pods.put(pod("other", labels={}))
    async with running(scene):
        await until(lambda: scene.agent.tables.exists)
        await starts.enter(start())
        # Its ADD has failed afterwards, and another pod gets the address.
        await starts.enter(start("other"))
        await until(lambda: not scene.agent.tables.of("class4"), seconds=1.0)
        assert {*scene.agent.tables.of("known4")} == {ADDRESS}
        await starts.enter(start("new", OTHER))
        await until(lambda: {*scene.agent.tables.of("class4")} == {OTHER}, seconds=1.0)
        scene.cluster.pods.remove("t1/new")
        await until(lambda: not scene.agent.tables.of("class4"), seconds=1.0)


@pytest.mark.parametrize("addresses", [("10.244.1.9", "nonsense"), ("10.244.1.9/24",)])
async def test_what_is_no_address_is_refused(addresses: tuple[str, ...]) -> None:
    scene = scene_of()
    with pytest.raises(ValueError, match="not addresses"):
        await starts_of(scene).enter(start("new", *addresses))
