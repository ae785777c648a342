"""What the ipam-controller takes back, what it leaves and tells of, and what it mends: on a real API server."""

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.block_request import BLOCK_REQUESTS, Pending
from coil.crd.builtin import NODES
from coil.crd.meta import ObjectMeta
from coil.crd.names import FINALIZER, LABEL_NODE, LABEL_POOL, LABEL_REQUEST, LABEL_RESERVED, NodeName
from coil.kube.client import KubeClient
from integration.apiserver.ipam_world import IpamWorld, until
from integration.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.apiserver


@pytest.fixture
async def world(plane: ControlPlane, admin: KubeClient) -> AsyncIterator[IpamWorld]:
    world = IpamWorld(plane, admin)
    yield world
    refused = world.missing_rights()
    await world.close()
    assert refused == [], "the role is too narrow"


async def reasons(world: IpamWorld, name: str) -> list[str]:
    return [event.reason for event in await world.events(name)]


async def test_a_node_that_registers_again_keeps_its_blocks(world: IpamWorld) -> None:
    """One node is deleted and back at once, another one after it for good: the same grace for both."""
    await world.start_ready("--node-grace=10s")
    back, gone = await world.add_node("back"), await world.add_node("gone")
    pool = await world.add_pool("pool", {"ipv4": "10.97.0.0/24"})
    for node in (back, gone):
        await world.ask(f"req-{node}", node=node, pool=pool)
    await until(world.all_answered, what="answers")
    uids = {block.node: block.metadata.uid for block in await world.blocks()}
    for node in (back, gone):
        await world.client.delete(NODES, node)
    await world.client.create(NODES, {"metadata": {"name": back}})

    async def collected() -> bool:
        held = {block.node for block in await world.blocks()}
        return gone not in held | {request.spec.node_name for request in await world.requests()}

    await until(collected, what="the collection of what the other one left")
    assert {block.node: block.metadata.uid for block in await world.blocks()} == {back: uids[back]}


async def test_a_dead_node_that_holds_blocks_is_reported_once(world: IpamWorld) -> None:
    replica = await world.start_ready("--gc-interval=1s")
    node = await world.add_node("dead")
    pool = await world.add_pool("pool", {"ipv4": "10.98.0.0/24"})
    for number in range(2):
        await world.ask(f"req{number}", node=node, pool=pool)
    await until(world.all_answered, what="answers")
    since = datetime.now(UTC) - timedelta(hours=1)
    await set_ready(world, node, "Unknown", since=since, heartbeat=0)

    async def told() -> bool:
        return bool(await world.events(node))

    await until(told, what="an Event on the node")
    for heartbeat in range(1, 4):
        await set_ready(world, node, "Unknown", since=since, heartbeat=heartbeat)
    await until(resynced_again(world), what="two more resyncs")
    (event,) = await world.events(node)
    assert (event.type, event.reason, event.count) == ("Warning", "HoldsBlocks", 1)
    assert f"{pool} (2)" in event.message
    assert event.involved_object.uid == (await world.client.get(NODES, node)).metadata.uid
    assert "HoldsBlocks" in world.plane.kubectl("describe", "node", node)
    samples = replica.metrics()
    assert samples["coil_controller_dead_nodes"] == 1
    assert samples[f'coil_controller_dead_node_blocks{{pool="{pool}"}}'] == 2
    assert len(await world.blocks()) == 2, "nobody but an admin can tell that it will not come back"

    # What the Event advises.
    await world.client.delete(NODES, node)

    async def collected() -> bool:
        return not await world.blocks()

    await until(collected, what="the collection")
    assert replica.metrics()["coil_controller_dead_nodes"] == 0


async def test_requests_that_nobody_deletes_after_their_answer_go(world: IpamWorld) -> None:
    await world.start_ready("--gc-interval=1s")
    node = await world.add_node("node1")
    pool = await world.add_pool("pool", {"ipv4": "10.99.0.0/24"})
    old = await world.ask("old", node=node, pool=pool)
    fresh = await world.ask("fresh", node=node, pool=pool)
    await until(world.all_answered, what="answers")
    past = (datetime.now(UTC) - timedelta(minutes=11)).isoformat()
    complete = {"type": "Complete", "status": "True", "lastProbeTime": past, "lastTransitionTime": past}
    await world.client.patch(BLOCK_REQUESTS, old, {"status": {"conditions": [complete]}}, subresource="status")

    async def gone() -> bool:
        return old not in {request.metadata.name for request in await world.requests()}

    await until(gone, what="the end of the dangling request")
    assert not isinstance((await world.request(fresh)).outcome(), Pending)
    assert len(await world.blocks()) == 2, "a block does not need its request"


@pytest.mark.slow
async def test_blocks_that_are_not_what_they_should_be(world: IpamWorld) -> None:
    """All faults at once, as each has to last for a while before anything is done about it."""
    replica = await world.start_ready()
    node, other, gone = [await world.add_node(name) for name in ("node1", "node2", "gone")]
    pool = await world.add_pool("pool", {"ipv4": "10.100.0.0/22"})
    for number in range(5):
        await world.ask(f"req{number}", node=node, pool=pool)
    await until(world.all_answered, what="answers")
    await until(at_work(world), what="the first resync")
    names = [f"{pool}-{index}" for index in range(5)]
    sound = await world.client.get(ADDRESS_BLOCKS, names[0])

    unprotected, unowned, without_pool, moved = names[1:]
    await change(world, unprotected, {"metadata": {"finalizers": None}})
    await change(world, unowned, {"metadata": {"ownerReferences": None}})
    await change(world, without_pool, {"metadata": {"labels": {LABEL_POOL: "nowhere"}}})
    await change(world, moved, {"metadata": {"labels": {LABEL_NODE: other}}})
    # Made so, as the networks of one that exists cannot be edited.
    edited = await add_block(world, f"{pool}-23", index=23, ipv4="10.100.3.0/27", pool=pool, node=node)
    stray = await add_block(world, f"{world.name}-stray", index=20, ipv4="10.100.2.128/27", pool=pool, node=node)
    nobodys = await add_block(world, f"{pool}-21", index=21, ipv4="10.100.2.160/27", pool=pool)
    reserved = await add_block(
        world, f"{pool}-22-v1", index=22, ipv4="10.100.2.192/27", pool=pool, node=gone, reserved="true"
    )
    await world.client.delete(NODES, gone)
    before = {str(block.name): block for block in await world.blocks()}

    wanted = {
        unprotected: ["Protected"],
        unowned: ["Protected"],
        edited: ["ContradictsPool"],
        without_pool: ["NoPool"],
        moved: ["NodeChanged"],
        stray: ["ForeignName"],
        nobodys: ["NoNode"],
        reserved: ["NodeGone"],
        pool: ["NodeGone"],
    }

    async def all_told() -> bool:
        return {name: await reasons(world, name) for name in wanted} == wanted

    await until(all_told, what="an Event on each block")
    assert await reasons(world, sound.name) == []
    after = {str(block.name): block for block in await world.blocks()}
    mended = {unprotected, unowned}
    assert {name: block for name, block in after.items() if name not in mended} == {
        name: block for name, block in before.items() if name not in mended
    }
    for name in mended:
        assert after[name].metadata.finalizers == (FINALIZER,)
        assert after[name].metadata.owner_references == sound.metadata.owner_references
    assert replica.metrics()["coil_controller_doubtful_blocks"] == 6

    # What is undone is forgotten.
    await change(world, moved, {"metadata": {"labels": {LABEL_NODE: node}}})

    async def forgotten() -> bool:
        return replica.metrics()["coil_controller_doubtful_blocks"] == 5

    await until(forgotten, what="one less to look at")


async def set_ready(world: IpamWorld, node: NodeName, status: str, *, since: datetime, heartbeat: int) -> None:
    ready = {
        "type": "Ready",
        "status": status,
        "lastTransitionTime": since.isoformat(),
        "lastHeartbeatTime": (since + timedelta(seconds=heartbeat)).isoformat(),
    }
    await world.client.patch(NODES, node, {"status": {"conditions": [ready]}}, subresource="status")


async def change(world: IpamWorld, name: str, patch: Mapping[str, Any]) -> None:
    await world.client.patch(ADDRESS_BLOCKS, name, patch)


async def add_block(world: IpamWorld, name: str, *, index: int, ipv4: str, **labels: str) -> str:
    """By hand; labels by their last part."""
    keys = {"pool": LABEL_POOL, "node": LABEL_NODE, "request": LABEL_REQUEST, "reserved": LABEL_RESERVED}
    metadata = ObjectMeta(name=name, labels={keys[key]: value for key, value in labels.items()})
    await world.client.create(ADDRESS_BLOCKS, AddressBlock(metadata=metadata, index=index, ipv4=ipv4))
    return name


def at_work(world: IpamWorld) -> Any:
    """Holds after the leader's first look at all nodes and blocks."""

    async def resynced() -> bool:
        return any(replica.resyncs("node") and replica.resyncs("blockaudit") for replica in world.replicas)

    return resynced


def resynced_again(world: IpamWorld) -> Any:
    """Holds after the leader has looked for dead nodes twice more."""
    before = world.replicas[0].resyncs("deadnode")

    async def resynced() -> bool:
        return world.replicas[0].resyncs("deadnode") >= before + 2

    return resynced
