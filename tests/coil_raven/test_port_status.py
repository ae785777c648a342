"""Ports that become ACTIVE, in virtual time."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from coil.crd.builtin import PODS
from coil.neutron.resource import Port
from coil.openstack.error import UnavailableError
from coil_raven.port_status import FOLLOW_SECONDS, LOOKS, MOST_IN_A_CALL, STUCK_SECONDS
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil.openstack.memory_neutron import MemoryNeutron
from tests.coil.reconcile.virtual_time import run_virtual
from tests.coil_raven.life import Life, add_namespace, add_pod, handoff


class Scene:
    """A life whose follower of ports runs; `changed` is what it has told."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.neutron = MemoryNeutron()
        add_namespace(self.api, "default")
        self.life = Life(MemoryClient(self.api), self.neutron)
        self.changed: list[str] = []
        self.life.statuses.changed.subscribe(self.changed.append)

    async def add_pods(self, *names: str) -> None:
        for name in names:
            add_pod(self.api, name)
        assert await self.life.settle() == []
        self.neutron.calls.clear()

    async def port(self, name: str) -> Port:
        uid = self.api.get(PODS, name, "default").metadata.uid
        (port,) = await self.neutron.ports(device_id=uid)
        return port

    async def plug(self, name: str) -> None:
        self.neutron.set_status((await self.port(name)).id, "ACTIVE")
        self.neutron.calls.clear()

    def is_active(self, name: str) -> bool:
        found = handoff(self.api, name)
        assert found is not None
        return found.active


def play(script: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        scene = Scene()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(scene.life.statuses.run())
            await script(scene)
            running.cancel()

    run_virtual(run)


def test_a_node_is_told_when_the_port_is_active() -> None:
    async def script(scene: Scene) -> None:
        await scene.add_pods("web", "other")
        assert not scene.is_active("web")
        await asyncio.sleep(5)
        await scene.plug("web")
        await asyncio.sleep(8)
        assert scene.changed == [scene.api.get(PODS, "web", "default").metadata.uid]
        await scene.life.settle()
        assert scene.is_active("web")
        assert not scene.is_active("other")

    play(script)


def test_a_port_is_looked_at_less_and_less_often_and_then_no_more() -> None:
    async def script(scene: Scene) -> None:
        await scene.add_pods("web")
        times: list[float] = []
        began = asyncio.get_running_loop().time()
        while (now := asyncio.get_running_loop().time()) < began + 2 * FOLLOW_SECONDS:
            if scene.neutron.calls:
                times.append(now - began)
                scene.neutron.calls.clear()
            await asyncio.sleep(0.25)
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert pauses == sorted(pauses)
        assert max(pauses) <= LOOKS.cap
        assert times[-1] <= FOLLOW_SECONDS + LOOKS.cap
        assert len(times) < 30
        # The regular comparison of all ports still notices it.
        await scene.plug("web")
        scene.life.look()
        uid = scene.api.get(PODS, "web", "default").metadata.uid
        assert [found async for found in scene.life.pod_reconciler.discrepancies()] == [uid]
        await scene.life.settle()
        assert scene.is_active("web")

    play(script)


def test_many_ports_are_in_one_call_and_none_without_any() -> None:
    async def script(scene: Scene) -> None:
        await scene.add_pods(*(f"web-{number}" for number in range(2 * MOST_IN_A_CALL)))
        await asyncio.sleep(1.5 * LOOKS.base)
        assert scene.neutron.calls == ["list ports"] * 2
        for pod in list(scene.api.all(PODS)):
            scene.api.remove(PODS, pod.metadata.name, "default")
        await scene.life.settle()
        assert scene.life.statuses._followed == {}
        scene.neutron.calls.clear()
        await asyncio.sleep(FOLLOW_SECONDS)
        assert scene.neutron.calls == []

    play(script)


def test_no_answer_is_asked_for_again() -> None:
    async def script(scene: Scene) -> None:
        await scene.add_pods("web")
        scene.neutron.faults.refusals["list ports"] = [UnavailableError("list ports", "503", "away")] * 3
        found = handoff(scene.api, "web")
        assert found is not None
        scene.neutron.set_status(found.port, "ACTIVE")
        await asyncio.sleep(30)
        assert len(scene.changed) == 1
        assert scene.neutron.calls == ["list ports"] * 4

    play(script)


def test_a_port_that_is_unplugged_is_noticed_by_the_comparison() -> None:
    async def script(scene: Scene) -> None:
        await scene.add_pods("web")
        await scene.plug("web")
        await asyncio.sleep(2)
        await scene.life.settle()
        assert scene.is_active("web")
        scene.neutron.set_status((await scene.port("web")).id, "DOWN")
        scene.life.look()
        assert len([found async for found in scene.life.pod_reconciler.discrepancies()]) == 1
        await scene.life.settle()
        assert not scene.is_active("web")

    play(script)


async def _pass(scene: Scene, seconds: float) -> None:
    """Have the reconciler at work for so long, with a second's delay."""
    for _ in range(int(seconds)):
        await asyncio.sleep(1)
        if scene.changed:
            scene.changed.clear()
            await scene.life.settle()


def _writes(scene: Scene) -> list[str]:
    return [call for call in scene.neutron.calls if not call.startswith("list")]


def test_a_port_that_stays_down_is_bound_anew_and_then_replaced() -> None:
    async def script(scene: Scene) -> None:
        await scene.add_pods("web")
        before = await scene.port("web")
        await _pass(scene, STUCK_SECONDS - 1)
        assert _writes(scene) == []
        await _pass(scene, LOOKS.cap)
        assert _writes(scene) == ["bind port", "bind port"]
        bound = await scene.port("web")
        assert (bound.id, bound.host_id, bound.unbound) == (before.id, before.host_id, False)
        await _pass(scene, STUCK_SECONDS + LOOKS.cap)
        after = await scene.port("web")
        assert after.id != before.id
        found = handoff(scene.api, "web")
        assert found is not None
        assert found.port == after.id
        # The pod has not been plugged in yet, so there is nothing that anybody has to do.
        assert scene.life.events.told == []
        await _pass(scene, FOLLOW_SECONDS)
        assert (await scene.port("web")).id == after.id
        assert {event.reason for event in scene.life.events.told} == {"PortDown"}

    play(script)


def test_binding_it_anew_helps() -> None:
    async def script(scene: Scene) -> None:
        await scene.add_pods("web")
        before = await scene.port("web")
        await _pass(scene, STUCK_SECONDS + LOOKS.cap)
        await scene.plug("web")
        await _pass(scene, FOLLOW_SECONDS)
        assert _writes(scene) == []
        assert (await scene.port("web")).id == before.id
        assert scene.is_active("web")

    play(script)


def test_the_port_of_a_pod_that_has_its_address_is_not_replaced() -> None:
    async def script(scene: Scene) -> None:
        await scene.add_pods("web")
        before = await scene.port("web")
        address = before.fixed_ips[0].ip_address
        scene.api.patch(PODS, "web", {"status": {"podIPs": [{"ip": address}]}}, namespace="default")
        await _pass(scene, FOLLOW_SECONDS)
        assert (await scene.port("web")).id == before.id
        assert _writes(scene) == ["bind port", "bind port"]
        assert {event.reason for event in scene.life.events.told} == {"PortDown"}

    play(script)


def test_one_that_was_unbound_and_left_is_bound() -> None:
    async def script(scene: Scene) -> None:
        await scene.add_pods("web")
        port = await scene.port("web")
        await scene.neutron.bind_port(port.id, "")
        scene.life.look()
        assert len([found async for found in scene.life.pod_reconciler.discrepancies()]) == 1
        await scene.life.settle()
        assert not (await scene.port("web")).unbound

    play(script)
