"""What an admin sees of pools: columns, conditions that can be waited for, Events. As `kubectl` shows it."""

import asyncio
import re
import time
from collections.abc import AsyncIterator

import pytest

from coil.crd.address_pool import ADDRESS_POOLS, AddressPoolStatus, Usage
from coil.crd.block_request import Refused
from coil.crd.builtin import Event
from coil.crd.names import PoolName
from coil.kube.client import KubeClient
from coil.kube.watch import Modified
from coil_ipam_controller.pool_status import BATCH_WINDOW
from integration.apiserver.ipam_world import IpamWorld, until
from integration.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.apiserver

MANY = 120
"""Blocks."""


@pytest.fixture
async def world(plane: ControlPlane, admin: KubeClient) -> AsyncIterator[IpamWorld]:
    world = IpamWorld(plane, admin)
    yield world
    refused = world.missing_rights()
    await world.close()
    assert refused == [], "the role is too narrow"


def shown(world: IpamWorld, pool: PoolName) -> dict[str, str]:
    """What `kubectl get addresspools` prints of the pool, by heading."""
    header, line = world.plane.kubectl("get", "addresspools", pool).splitlines()
    headings = list(re.finditer(r"\S+(?: \S+)*", header))
    ends = [heading.start() for heading in headings[1:]] + [None]
    return {heading[0]: line[heading.start() : end].strip() for heading, end in zip(headings, ends, strict=True)}


async def status(world: IpamWorld, pool: PoolName) -> AddressPoolStatus:
    return (await world.client.get(ADDRESS_POOLS, pool)).status


async def until_used(world: IpamWorld, pool: PoolName, blocks: int) -> None:
    async def counted() -> bool:
        found = await status(world, pool)
        return bool(found.conditions) and found.blocks.used == blocks

    await until(counted, what=f"a status that counts {blocks} blocks")


async def until_told(world: IpamWorld, name: str, reason: str) -> Event:
    async def told() -> bool:
        return any(event.reason == reason for event in await world.events(name))

    await until(told, what=f"an Event {reason}")
    return next(event for event in await world.events(name) if event.reason == reason)


async def test_a_pool_from_empty_to_exhausted_and_back(world: IpamWorld) -> None:
    await world.start_ready("--pool-nearly-full=50%")
    node = await world.add_node("node1")
    pool = await world.add_pool("pool", {"ipv4": "10.90.0.0/30", "ipv6": "fd90::/126"}, bits=0)
    await until_used(world, pool, 0)
    columns = shown(world, pool)
    age = columns.pop("AGE")
    assert age
    assert columns == {
        "NAME": pool,
        "BLOCKSIZE BITS": "0",
        "BLOCKS": "4",
        "USED BLOCKS": "0",
        "ADDRESSES": "4",
        "USED ADDRESSES": "0",
        "READY": "True",
        "FILL": "HasRoom",
    }

    for number in range(3):
        await world.ask(f"req{number}", node=node, pool=pool)
    await until_used(world, pool, 3)
    assert shown(world, pool)["FILL"] == "NearlyFull"
    await world.ask("req3", node=node, pool=pool)
    await asyncio.to_thread(
        world.plane.kubectl, "wait", "--for=condition=Full", f"addresspool/{pool}", "--timeout=180s"
    )
    assert shown(world, pool)["USED ADDRESSES"] == "4"

    for number in range(20):
        await world.ask(f"late{number}", node=node, pool=pool)
    await until(world.all_answered, what="refusals")
    assert sum(isinstance(request.outcome(), Refused) for request in await world.requests()) == 20
    exhausted = await until_told(world, pool, "PoolExhausted")
    assert exhausted.type == "Warning"
    assert exhausted.involved_object.uid == (await world.client.get(ADDRESS_POOLS, pool)).metadata.uid
    assert exhausted.source.component == exhausted.reporting_component == "coil-ipam-controller"
    described = await asyncio.to_thread(world.plane.kubectl, "describe", "addresspool", pool)
    assert "PoolExhausted" in described
    assert "append a subnet to it" in described

    blocks = await world.blocks()
    for block in blocks[:3]:
        await world.give_back(block)
    await asyncio.to_thread(
        world.plane.kubectl, "wait", "--for=condition=Full=false", f"addresspool/{pool}", "--timeout=180s"
    )
    await until_told(world, pool, "PoolHasRoom")
    events = await world.events(pool)
    counts = {event.reason: len([other for other in events if other.reason == event.reason]) for event in events}
    assert counts["PoolExhausted"] == 1, "twenty refusals are not twenty Events"


async def test_a_subnet_that_is_appended_counts_at_once(world: IpamWorld) -> None:
    await world.start_ready()
    pool = await world.add_pool("pool", {"ipv4": "10.91.0.0/27"})
    await until_used(world, pool, 0)
    before = await world.client.get(ADDRESS_POOLS, pool)
    assert before.status.blocks == Usage(total=1)
    assert before.status.observed_generation == before.metadata.generation
    subnets = [{"ipv4": "10.91.0.0/27"}, {"ipv4": "10.92.0.0/24"}]
    await world.client.patch(ADDRESS_POOLS, pool, {"spec": {"subnets": subnets}})

    async def counted() -> bool:
        return (await status(world, pool)).blocks == Usage(total=9)

    await until(counted, what="the larger total")
    after = await world.client.get(ADDRESS_POOLS, pool)
    assert after.metadata.generation > before.metadata.generation, "a status is no generation"
    assert after.status.observed_generation == after.metadata.generation
    times = [
        {condition.type: condition.last_transition_time for condition in found.status.conditions}
        for found in (before, after)
    ]
    assert times[0] == times[1], "nothing has become true or false"


async def test_a_pool_too_large_to_count_is_shown_as_far_as_numbers_go(world: IpamWorld) -> None:
    await world.start_ready()
    pool = await world.add_pool("pool", {"ipv6": "fd92::/64"})
    await until_used(world, pool, 0)
    columns = shown(world, pool)
    assert (columns["BLOCKS"], columns["ADDRESSES"]) == (str(2**59), str(2**63 - 1))
    assert (await status(world, pool)).addresses == Usage(total=2**63 - 1)


async def test_a_pool_that_gives_no_blocks_says_why_until_it_does(world: IpamWorld) -> None:
    older = await world.add_pool("older", {"ipv4": "10.93.0.0/24"})
    await asyncio.sleep(1.1)  # the API server's clock has seconds, and the older one of two is meant
    younger = await world.add_pool("younger", {"ipv4": "10.93.0.0/25"})
    broken = await world.add_pool("broken", {"ipv4": "10.94.0.999/24"})
    await world.start_ready()
    await until_used(world, younger, 0)
    await until_used(world, broken, 0)
    assert shown(world, older)["READY"] == "True"
    assert shown(world, younger)["READY"] == shown(world, broken)["READY"] == "False"
    reasons = {
        pool: condition.reason
        for pool in (younger, broken)
        if (condition := (await status(world, pool)).condition("Ready"))
    }
    assert reasons == {younger: "OverlapsPool", broken: "InvalidPool"}
    told = await until_told(world, broken, "PoolGivesNoBlocks")
    assert "is not a network in CIDR notation" in told.message
    await until_told(world, younger, "PoolGivesNoBlocks")

    await world.client.delete(ADDRESS_POOLS, older)
    await asyncio.to_thread(
        world.plane.kubectl, "wait", "--for=condition=Ready", f"addresspool/{younger}", "--timeout=180s"
    )
    await until_told(world, younger, "PoolReady")


async def test_a_deleted_pool_says_who_keeps_it(world: IpamWorld) -> None:
    await world.start_ready()
    nodes = [await world.add_node(f"node{number}") for number in range(2)]
    pool = await world.add_pool("pool", {"ipv4": "10.95.0.0/24"})
    for number in range(3):
        await world.ask(f"req{number}", node=nodes[number % 2], pool=pool)
    await until_used(world, pool, 3)
    await world.client.delete(ADDRESS_POOLS, pool)

    async def explained() -> bool:
        ready = (await status(world, pool)).condition("Ready")
        return ready is not None and ready.reason == "Deleting"

    await until(explained, what="the reason")
    ready = (await status(world, pool)).condition("Ready")
    assert ready is not None
    assert ready.message == f"the pool {pool!r} is being deleted; 3 blocks remain: {nodes[0]} (2), {nodes[1]} (1)"
    told = await until_told(world, pool, "PoolInUse")
    assert f"{nodes[0]} (2)" in told.message
    for block in await world.blocks():
        await world.give_back(block)

    async def gone() -> bool:
        return await world.pool(pool) is None

    await until(gone, what="the pool's end")


async def test_many_blocks_at_once_are_few_writes(world: IpamWorld) -> None:
    await world.start_ready()
    node = await world.add_node("node1")
    pool = await world.add_pool("pool", {"ipv4": "10.96.0.0/16"})
    await until_used(world, pool, 0)
    version = (await world.client.get(ADDRESS_POOLS, pool)).metadata.resource_version
    seen: list[int] = []

    async def listen() -> None:
        async with world.client.collection(ADDRESS_POOLS).watch(resource_version=version) as batches:
            async for batch in batches:
                changed = [event.object for event in batch if isinstance(event, Modified)]
                seen.extend(found.status.blocks.used for found in changed if found.name == pool)

    listening = asyncio.create_task(listen())
    began = time.monotonic()
    try:
        await asyncio.gather(*(world.ask(f"req{number}", node=node, pool=pool) for number in range(MANY)))
        await until(world.all_answered, what="answers")
        await until_used(world, pool, MANY)

        async def heard() -> bool:
            return bool(seen) and seen[-1] == MANY

        await until(heard, what="the last write")
    finally:
        listening.cancel()
        await asyncio.wait({listening})
    assert seen == sorted(set(seen)), "each write counts more than the one before"
    # However long the blocks took: each write has gathered the changes of a second, but those of the first and last.
    assert len(seen) <= (time.monotonic() - began) / BATCH_WINDOW + 2
