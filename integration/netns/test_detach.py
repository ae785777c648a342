"""Pods go, many at a time, and nothing of them stays: neither in the kernel nor in this process."""

import asyncio
import gc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coil.kernel.link import LinkName
from coil.netlink.connection import Connection
from coil.netlink.error import BusyError, NetlinkError
from coil.netlink.host import HostNetwork
from coil.netlink.monitor import LinkWatch
from integration.netns.netns import Netns, exchange
from integration.netns.plans import pod_plan

pytestmark = pytest.mark.kernel


async def test_nothing_is_left_when_it_returns(network: HostNetwork, host: Netns, pod: Netns) -> None:
    before = host.state(), pod.state()
    for _ in range(5):
        plan = pod_plan()
        await network.attach_pod(plan, pod.path)
        await network.detach_pod(plan.host.name)
        assert (host.state(), pod.state()) == before


async def test_it_is_idempotent(network: HostNetwork, host: Netns, pod: Netns) -> None:
    plan = pod_plan()
    await network.detach_pod(plan.host.name)
    await network.attach_pod(plan, pod.path)
    await asyncio.gather(*(network.detach_pod(plan.host.name) for _ in range(5)))
    await network.detach_pod(plan.host.name)
    assert host.link_names() == pod.link_names() == set()


async def test_only_the_named_pod_goes(network: HostNetwork, host: Netns, new_netns: Callable[[], Netns]) -> None:
    pods = [new_netns(), new_netns()]
    plans = [pod_plan(1), pod_plan(2)]
    for plan, pod in zip(plans, pods, strict=True):
        await network.attach_pod(plan, pod.path)
    await network.detach_pod(plans[0].host.name)
    await network.check_pod(plans[1], pods[1].path)
    for assignment in plans[1].assignments:
        exchange(host, pods[1], assignment.address)


async def test_the_same_name_can_be_used_again_at_once(network: HostNetwork, host: Netns, pod: Netns) -> None:
    plan = pod_plan()
    for _ in range(20):
        await network.attach_pod(plan, pod.path)
        await network.detach_pod(plan.host.name)
    await network.attach_pod(plan, pod.path)
    await network.check_pod(plan, pod.path)


async def test_a_cancelled_detach_takes_effect(network: HostNetwork, host: Netns, pod: Netns) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    task = asyncio.create_task(network.detach_pod(plan.host.name))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await network.detach_pod(plan.host.name)
    assert host.link_names() == pod.link_names() == set()


async def test_without_events_the_answer_is_waited_for(
    network: HostNetwork, host: Netns, pod: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LinkWatch, "_tell", lambda *_: None)
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    await network.detach_pod(plan.host.name)
    assert host.link_names() == pod.link_names() == set()


async def test_a_failure_is_everyones_who_waited(
    network: HostNetwork, host: Netns, pod: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)

    def refuse(*_: object, **__: object) -> None:
        raise NetlinkError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "apply", refuse)
        results = await asyncio.gather(
            *(network.detach_pod(LinkName(name)) for name in (plan.host.name, "veth00000000")), return_exceptions=True
        )
        assert [str(result) for result in results] == ["no answer", "no answer"]
    await network.check_pod(plan, pod.path)
    await network.detach_pod(plan.host.name)
    assert host.link_names() == set()


async def test_64_pods_at_once(network: HostNetwork, host: Netns, new_netns: Callable[[], Netns]) -> None:
    before = host.state()
    pods = [new_netns() for _ in range(64)]
    plans = [pod_plan(number) for number in range(1, 65)]
    await asyncio.gather(*(network.attach_pod(plan, pod.path) for plan, pod in zip(plans, pods, strict=True)))
    await asyncio.gather(*(network.check_pod(plan, pod.path) for plan, pod in zip(plans, pods, strict=True)))
    assert {link.alias.container_id for link in await network.pod_links()} == {
        plan.host.alias.split(":")[2] for plan in plans
    }
    for one, other in ((0, 63), (31, 32)):
        for assignment in plans[other].assignments:
            exchange(pods[one], pods[other], assignment.address)
    # Half of them go while others come back under the same names.
    await asyncio.gather(*(network.detach_pod(plan.host.name) for plan in plans[:32]))
    await asyncio.gather(
        *(network.detach_pod(plan.host.name) for plan in plans[32:]),
        *(network.attach_pod(plan, pod.path) for plan, pod in zip(plans[:32], pods[:32], strict=True)),
    )
    assert host.link_names() == {plan.host.name for plan in plans[:32]}
    await asyncio.gather(*(network.detach_pod(plan.host.name) for plan in plans))
    assert host.state() == before
    assert [pod.link_names() for pod in pods] == [set()] * 64


async def test_500_pods_leave_no_descriptor_no_thread_and_no_message_behind(
    host: Netns, new_netns: Callable[[], Netns]
) -> None:
    pods = [new_netns() for _ in range(25)]

    async def cycles(network: HostNetwork, rounds: int) -> None:
        for _ in range(rounds):
            plans = [pod_plan(number) for number in range(1, len(pods) + 1)]
            await asyncio.gather(*(network.attach_pod(plan, pod.path) for plan, pod in zip(plans, pods, strict=True)))
            await network.pod_links()
            await asyncio.gather(*(network.detach_pod(plan.host.name) for plan in plans))

    async def rest(network: HostNetwork) -> tuple[int, int]:
        # Deletions that were reported still have some 15 ms to go in their threads.
        await network._removal.aclose()
        return collected_descriptors(), unread_netlink_bytes(host)

    def collected_descriptors() -> int:
        # What earlier tests of this process have left to the garbage collector may go at any moment.
        gc.collect()
        return descriptors()

    idle = collected_descriptors()
    async with HostNetwork(host.path) as network:
        await cycles(network, 1)
        running = await rest(network)
        await cycles(network, 20)
        after = await rest(network)
        assert after[0] <= running[0]
        assert running[1] == after[1] == 0
        assert 0 < len(our_threads()) <= 18
    assert collected_descriptors() <= idle
    assert our_threads() == []
    assert host.link_names() == set()


async def test_far_too_many_are_refused(network: HostNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coil.netlink.removal._MAX_PENDING", 10)
    results = await asyncio.gather(
        *(network.detach_pod(LinkName(f"veth{number}")) for number in range(15)), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None)] * 10 + [BusyError] * 5


def our_threads() -> list[str]:
    """The threads of the network under test."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pod-")]


def descriptors() -> int:
    """Open file descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def unread_netlink_bytes(netns: Netns) -> int:
    """What waits in the receive queues of all netlink sockets of the namespace (the kernel's own aside)."""
    table = netns.call(lambda: Path("/proc/thread-self/net/netlink").read_text())
    rows = [line.split() for line in table.splitlines()[1:]]
    return sum(int(row[4]) for row in rows if row[2] != "0")
