"""Terms of leadership in virtual time: what is gathered, what is waited for, and what is not done twice."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS, SubnetSet, Usage
from coil.crd.builtin import NODES
from tests.coil.kube.memory_api import MemoryApi
from tests.coil.reconcile.virtual_time import run_virtual
from tests.coil_ipam_controller.scene import NOON, SETTINGS, add_block, add_node, add_pool
from tests.coil_ipam_controller.test_terms import IpamReplica

LOOK = 0.01  # seconds by which the caches are late


def play(script: Callable[[MemoryApi, IpamReplica], Awaitable[None]]) -> None:
    """Run `script` beside a leader with a pool of 2048 blocks and a node."""

    async def main() -> None:
        api = MemoryApi()
        add_node(api, "node1")
        add_pool(api, "default", SubnetSet(ipv4="10.2.0.0/16"))
        replica = IpamReplica(api, replace(SETTINGS, node_grace=15))

        changed = asyncio.Event()
        changed.set()
        api.subscribe(changed.set)

        async def follow() -> None:
            while True:
                await changed.wait()
                await asyncio.sleep(LOOK)
                changed.clear()
                replica.caches.look()

        following = asyncio.create_task(follow())
        try:
            async with replica.term():
                await asyncio.sleep(3)
                await script(api, replica)
        finally:
            following.cancel()
            await asyncio.wait({following})

    run_virtual(main)


def status_writes(replica: IpamReplica) -> int:
    return sum(call.plural == "addresspools" for call in replica.client.calls)


def test_five_hundred_blocks_in_ten_seconds_are_ten_writes() -> None:
    async def script(api: MemoryApi, replica: IpamReplica) -> None:
        before = status_writes(replica)
        for index in range(500):
            add_block(api, f"default-{index}", index, pool="default", node="node1")
            if index % 25 == 24:
                await asyncio.sleep(0.5)
        assert 5 <= status_writes(replica) - before <= 11
        await asyncio.sleep(2)
        assert api.get(ADDRESS_POOLS, "default").status.blocks == Usage(total=2048, used=500)
        quiet = status_writes(replica)
        await asyncio.sleep(3700)
        assert status_writes(replica) == quiet, "nor does a sweep write what has not changed"

    play(script)


def test_a_change_of_the_spec_is_told_at_once() -> None:
    async def script(api: MemoryApi, replica: IpamReplica) -> None:
        add_pool(api, "late", SubnetSet(ipv4="10.2.0.0/24"))
        await asyncio.sleep(10 * LOOK)
        ready = api.get(ADDRESS_POOLS, "late").status.condition("Ready")
        assert ready is not None
        assert ready.reason == "OverlapsPool"
        api.patch(ADDRESS_POOLS, "default", {"metadata": {"finalizers": []}}, subresource="")
        api.delete(ADDRESS_POOLS, "default")
        await asyncio.sleep(10 * LOOK)
        ready = api.get(ADDRESS_POOLS, "late").status.condition("Ready")
        assert ready is not None
        assert ready.status == "True", "the pool that it overlapped has gone"

    play(script)


def test_a_status_that_somebody_has_edited_is_mended_by_the_sweep() -> None:
    async def script(api: MemoryApi, replica: IpamReplica) -> None:
        api.patch(ADDRESS_POOLS, "default", {"status": {"blocks": {"total": 1}}}, subresource="status")
        await asyncio.sleep(3700)
        assert api.get(ADDRESS_POOLS, "default").status.blocks == Usage(total=2048)

    play(script)


def test_a_node_that_registers_again_within_the_grace_keeps_its_blocks() -> None:
    async def script(api: MemoryApi, replica: IpamReplica) -> None:
        add_block(api, "default-0", 0, pool="default", node="node1")
        await asyncio.sleep(1)
        for _ in range(5):
            api.delete(NODES, "node1")
            await asyncio.sleep(10)
            add_node(api, "node1")
            await asyncio.sleep(1)
        await asyncio.sleep(3700)
        assert len(api.all(ADDRESS_BLOCKS)) == 1
        api.delete(NODES, "node1")
        await asyncio.sleep(14)
        assert len(api.all(ADDRESS_BLOCKS)) == 1
        await asyncio.sleep(2)
        assert api.all(ADDRESS_BLOCKS) == []

    play(script)


def test_heartbeats_of_a_dead_node_and_sweeps_tell_nothing_more() -> None:
    async def script(api: MemoryApi, replica: IpamReplica) -> None:
        add_block(api, "default-0", 0, pool="default", node="node1")
        since = (NOON - timedelta(seconds=601)).isoformat()
        for beat in range(50):
            heartbeat = (NOON + timedelta(seconds=300 * beat)).isoformat()
            ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": since, "lastHeartbeatTime": heartbeat}
            api.patch(NODES, "node1", {"status": {"conditions": [ready]}}, subresource="status")
            await asyncio.sleep(300)
        assert replica.events.reasons.count("HoldsBlocks") == 1

    play(script)


def test_what_happens_to_blocks_is_noticed() -> None:
    async def script(api: MemoryApi, replica: IpamReplica) -> None:
        add_block(api, "stray-1", 1, pool="default", node="node1")
        await asyncio.sleep(31)
        assert replica.events.reasons == ["ForeignName"]
        api.patch(ADDRESS_BLOCKS, "stray-1", {"metadata": {"labels": {"coil.cybozu.com/pool": None}}}, subresource="")
        await asyncio.sleep(31)
        assert replica.events.reasons == ["ForeignName", "NoPool"]
        await asyncio.sleep(3700)
        assert replica.events.reasons == ["ForeignName", "NoPool"], "told once"
        assert api.find(ADDRESS_BLOCKS, "stray-1") is not None

    play(script)
