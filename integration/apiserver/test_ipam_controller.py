"""The ipam-controller as real processes, under its own service account, on a real API server."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.block_request import BLOCK_REQUESTS, Granted, RefusalReason, Refused
from coil.crd.builtin import NODES
from coil.crd.meta import ObjectMeta
from coil.crd.names import FINALIZER, LABEL_NODE, LABEL_POOL, LABEL_RESERVED, NodeName, PoolName
from coil.kube.api_client import ApiClient
from coil.kube.client import KubeClient
from integration.apiserver.ipam_world import STOP_TIMEOUT, IpamWorld, until
from integration.cluster.control_plane import ControlPlane
from tests.coil.kube.api_client_contract import ApiClientContract

pytestmark = pytest.mark.apiserver

MANY = (40, pytest.param(200, marks=pytest.mark.slow))
"""Requests at once."""

DEATHS = (1, pytest.param(3, marks=pytest.mark.slow))


@pytest.fixture
async def world(plane: ControlPlane, admin: KubeClient) -> AsyncIterator[IpamWorld]:
    world = IpamWorld(plane, admin)
    yield world
    refused = world.missing_rights()
    await world.close()
    assert refused == [], "the role is too narrow"


class TestKubeApi(ApiClientContract):
    """The real API server keeps the contract that the one in memory keeps."""

    @pytest.fixture
    def client(self, world: IpamWorld) -> ApiClient:
        return world.client

    @pytest.fixture
    def name(self, world: IpamWorld) -> str:
        return world.name


async def test_a_request_gets_a_block(world: IpamWorld) -> None:
    await world.start_ready()
    node = await world.add_node("node1")
    name = await world.add_pool("pool", {"ipv4": "10.61.0.0/16", "ipv6": "fd61::/112"})
    request = await world.ask("req", node=node, pool=name)
    await until(world.all_answered, what="an answer")

    outcome = (await world.request(request)).outcome()
    assert outcome == Granted((await world.blocks())[0].name)
    (block,) = await world.blocks()
    pool = await world.pool(name)
    assert pool is not None
    assert block.name == f"{name}-0"
    assert (block.index, block.ipv4, block.ipv6) == (0, "10.61.0.0/27", "fd61::/123")
    assert (block.pool, block.node, block.request) == (name, node, (await world.request(request)).uid)
    assert block.metadata.finalizers == pool.metadata.finalizers == (FINALIZER,)
    (owner,) = block.metadata.owner_references
    assert (owner.kind, owner.uid, owner.controller, owner.block_owner_deletion) == (
        "AddressPool",
        pool.metadata.uid,
        True,
        True,
    )


@pytest.mark.parametrize("number", MANY)
async def test_many_requests_at_once_over_3_pools_get_as_many_blocks(world: IpamWorld, number: int) -> None:
    replica = await world.start_ready()
    node = await world.add_node("node1")
    pools = [await world.add_pool(f"pool{index}", {"ipv4": f"10.{62 + index}.0.0/16"}) for index in range(3)]
    asked = Counter(pools[index % 3] for index in range(number))
    asking = (world.ask(f"req{index}", node=node, pool=pools[index % 3]) for index in range(number))
    await asyncio.gather(*asking)
    await until(world.all_answered, what=f"{number} answers")

    outcomes = [item.outcome() for item in await world.requests()]
    granted = {outcome.block for outcome in outcomes if isinstance(outcome, Granted)}
    blocks = await world.blocks()
    assert {block.name for block in blocks} == granted
    assert len(blocks) == number
    assert len({block.ipv4 for block in blocks}) == number
    assert Counter(block.pool for block in blocks) == asked
    assert {block.index for block in blocks} == set(range(max(asked.values()))), "no index was skipped"

    samples = replica.metrics()
    assert samples[f'coil_controller_max_blocks{{pool="{pools[0]}"}}'] == 2048
    assert samples[f'coil_controller_allocated_blocks{{pool="{pools[0]}"}}'] == asked[pools[0]]


async def test_refusals_say_why(world: IpamWorld) -> None:
    # From a time in which nobody judged pools: later it could not be created.
    broken = await world.add_pool("broken", {"ipv4": "10.67.0.999/24"})
    await world.start_ready()
    node = await world.add_node("node1")
    small = await world.add_pool("small", {"ipv4": "10.66.0.0/27"})
    asked = [
        await world.ask("first", node=node, pool=small),
        await world.ask("broken", node=node, pool=broken),
        await world.ask("nothing", node=node, pool=PoolName("no-such-pool")),
    ]
    await until(world.all_answered, what="answers")
    asked.append(await world.ask("late", node=node, pool=small))
    await until(world.all_answered, what="the last answer")

    outcomes = [(await world.request(name)).outcome() for name in asked]
    assert isinstance(outcomes[0], Granted)
    reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Refused)]
    assert reasons == [RefusalReason.INVALID_POOL, RefusalReason.NO_SUCH_POOL, RefusalReason.OUT_OF_BLOCKS]
    shown = world.plane.kubectl("get", "blockrequests", asked[3])
    assert shown.splitlines()[1].split()[1:6] == [node, small, "Failed", "out", "of"]


async def test_a_pool_goes_after_its_last_block(world: IpamWorld) -> None:
    await world.start_ready()
    node = await world.add_node("node1")
    name = await world.add_pool("pool", {"ipv4": "10.68.0.0/24"})
    for number in range(2):
        await world.ask(f"req{number}", node=node, pool=name)
    await until(world.all_answered, what="answers")
    await world.client.delete(ADDRESS_POOLS, name)

    refused = await world.ask("late", node=node, pool=name)
    await until(world.all_answered, what="a refusal")
    outcome = (await world.request(refused)).outcome()
    assert isinstance(outcome, Refused)
    assert (outcome.reason, outcome.message) == ("out of blocks", f"the pool {name!r} is being deleted")

    first, second = await world.blocks()
    await world.give_back(first)

    async def counted() -> bool:
        """Whether the controller has seen that block go."""
        pool = await world.pool(name)
        assert pool is not None, "it has a block"
        ready = pool.status.condition("Ready")
        return ready is not None and f"1 blocks remain: {node} (1)" in ready.message

    await until(counted, what="a status that tells of the last block")
    await world.give_back(second)

    async def gone() -> bool:
        return await world.pool(name) is None

    await until(gone, what="the pool's end")


async def test_what_a_deleted_node_leaves_is_collected(world: IpamWorld) -> None:
    await world.start_ready()
    gone, stays = await world.add_node("gone"), await world.add_node("stays")
    name = await world.add_pool("pool", {"ipv4": "10.69.0.0/24"})
    for number, node in enumerate((gone, stays, gone)):
        await world.ask(f"req{number}", node=node, pool=name)
    await until(world.all_answered, what="answers")
    reserved = AddressBlock(
        metadata=ObjectMeta(
            name=f"{name}-7-v1",
            labels={LABEL_POOL: name, LABEL_NODE: gone, LABEL_RESERVED: "true"},
            finalizers=(FINALIZER,),
        ),
        index=7,
        ipv4="10.69.0.224/27",
    )
    await world.client.create(ADDRESS_BLOCKS, reserved)
    assert len(await world.blocks()) == 4
    await world.client.delete(NODES, gone)

    async def collected() -> bool:
        return {block.node for block in await world.blocks() if not block.reserved} == {stays}

    await until(collected, what="the collection")
    assert {block.name for block in await world.blocks() if block.reserved} == {f"{name}-7-v1"}


async def test_a_node_that_went_while_no_controller_ran_is_noticed(world: IpamWorld) -> None:
    replica = await world.start_ready()
    node = await world.add_node("gone")
    name = await world.add_pool("pool", {"ipv4": "10.70.0.0/24"})
    await world.ask("req", node=node, pool=name)
    await until(world.all_answered, what="an answer")
    replica.service.kill()
    await world.client.delete(NODES, node)
    replica.service.start()

    async def collected() -> bool:
        return not await world.blocks() and not await world.requests()

    await until(collected, what="the collection of block and request")


@pytest.mark.parametrize("deaths", DEATHS)
async def test_killed_again_and_again_it_still_makes_one_block_per_request(world: IpamWorld, deaths: int) -> None:
    """Each life ends by kill -9 while it answers; the successor waits for the lease and carries on."""
    replica = await world.start_ready()
    nodes = [await world.add_node(f"node{number}") for number in range(3)]
    name = await world.add_pool("pool", {"ipv4": "10.71.0.0/16", "ipv6": "fd71::/112"})
    for life in range(deaths):
        before = len(await world.blocks())
        asking = (world.ask(f"req{life}-{number}", node=nodes[number % 3], pool=name) for number in range(60))
        await asyncio.gather(*asking)

        async def at_work(already: int = before) -> bool:
            return len(await world.blocks()) > already

        await until(at_work, what="the first blocks of a life")
        replica.service.kill()
        replica.service.start()
    await until(world.all_answered, what="all answers")

    blocks = await world.blocks()
    requests = await world.requests()
    assert len(requests) == 60 * deaths
    assert Counter(block.request for block in blocks) == {request.uid: 1 for request in requests}
    named = {request.uid: request.outcome() for request in requests}
    assert all(named[block.request] == Granted(block.name) for block in blocks)
    assert len({block.ipv4 for block in blocks}) == len({block.ipv6 for block in blocks}) == 60 * deaths


async def test_a_standby_is_ready_and_takes_over(world: IpamWorld) -> None:
    # Long enough that a busy machine does not make the first lose its lease; nobody waits for its end.
    lease = "--lease-duration=60s"
    first = await world.start_ready(lease)
    node = await world.add_node("node1")
    name = await world.add_pool("pool", {"ipv4": "10.74.0.0/24"})
    await world.ask("first", node=node, pool=name)
    await until(world.all_answered, what="an answer")
    second = await world.start_ready(lease)
    assert not second.has_logged("leading")
    first.service.process.terminate()
    assert await asyncio.to_thread(first.service.process.wait, STOP_TIMEOUT) == 0, "a graceful stop"
    await world.ask("second", node=node, pool=name)
    await until(world.all_answered, what="an answer of the second replica")
    assert second.has_logged("leading")
    assert len(await world.blocks()) == 2


async def test_it_works_on_after_the_api_server_was_away(world: IpamWorld) -> None:
    await world.start_ready()
    node = await world.add_node("node1")
    name = await world.add_pool("pool", {"ipv4": "10.75.0.0/24"})
    await asyncio.to_thread(world.plane.restart_apiserver)
    await world.ask("req", node=node, pool=name)
    await until(world.all_answered, what="an answer")
    assert len(await world.blocks()) == 1


async def test_a_request_of_a_node_that_does_not_exist_is_refused(world: IpamWorld) -> None:
    replica = await world.start_ready()

    async def swept() -> bool:
        return replica.resyncs("node") > 0

    await until(swept, what="the resync at the beginning of a term, which would collect the request")
    name = await world.add_pool("pool", {"ipv4": "10.76.0.0/24"})
    node = NodeName(f"{world.name}-nowhere")
    body = {"metadata": {"name": f"{world.name}-req"}, "spec": {"nodeName": node, "poolName": name}}
    await world.client.create(BLOCK_REQUESTS, body)
    await until(world.all_answered, what="an answer")
    outcome = (await world.request(f"{world.name}-req")).outcome()
    assert outcome == Refused("no such node", f"there is no node {node!r}")
    assert await world.blocks() == []
