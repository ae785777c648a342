"""Terms of leadership: what is there at their beginning is worked on, what happens is, and nothing outlives them."""

import asyncio

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS, SubnetSet
from coil.crd.block_request import BLOCK_REQUESTS, Pending
from coil.crd.builtin import NODES
from coil.crd.names import FINALIZER
from coil.ipam.index_set import IndexSet
from coil_ipam_controller.main import Reconcilers
from coil_ipam_controller.settings import Settings
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil.manager.replica import LOG, Replica
from tests.coil_ipam_controller.memory_caches import MemoryCaches
from tests.coil_ipam_controller.memory_recorder import MemoryRecorder
from tests.coil_ipam_controller.scene import NOON, SETTINGS, add_block, add_node, add_pool, add_request, granted


class IpamReplica(Replica):
    def __init__(self, api: MemoryApi, settings: Settings = SETTINGS) -> None:
        self.client = MemoryClient(api)
        self.caches = caches = MemoryCaches(api)
        self.events = MemoryRecorder()
        index = IndexSet(lambda: 0.0)
        caches.blocks.subscribe(index.observe)
        reconcilers = Reconcilers(
            settings=settings,
            client=self.client,
            caches=caches.all,
            index=index,
            recorder=self.events,
            doubtful=lambda count: None,
            now=lambda: NOON,
            clock=asyncio.get_running_loop().time,
            log=LOG,
        )
        super().__init__(reconcilers.setup, caches.look)


@pytest.fixture
def api() -> MemoryApi:
    api = MemoryApi()
    add_node(api, "node1")
    add_pool(api, "default", SubnetSet(ipv4="10.2.0.0/24"))
    return api


def pending(api: MemoryApi) -> bool:
    return any(isinstance(request.outcome(), Pending) for request in api.all(BLOCK_REQUESTS))


async def test_a_term_answers_what_waits_and_what_comes(api: MemoryApi) -> None:
    replica = IpamReplica(api)
    add_request(api, "early")
    async with replica.term():
        await replica.until(lambda: not pending(api))
        add_request(api, "late")
        await replica.until(lambda: not pending(api))
    assert api.get(BLOCK_REQUESTS, "early").outcome() == granted("default-0")
    assert api.get(BLOCK_REQUESTS, "late").outcome() == granted("default-1")


async def test_between_terms_nothing_is_done_and_the_next_one_catches_up(api: MemoryApi) -> None:
    replica = IpamReplica(api)
    for name in ("first", "second"):
        add_request(api, name)
        replica.caches.look()
        await asyncio.sleep(0)
        assert pending(api), "nobody leads"
        async with replica.term():
            await replica.until(lambda: not pending(api))
    assert len(api.all(ADDRESS_BLOCKS)) == 2


async def test_our_own_writing_to_a_request_leads_to_no_further_call(api: MemoryApi) -> None:
    replica = IpamReplica(api)
    add_request(api, "req")
    async with replica.term():
        await replica.until(lambda: not pending(api))
        for _ in range(50):
            await asyncio.sleep(0)
    calls = [call.verb for call in replica.client.calls if call.plural != "addresspools"]
    assert calls == ["patch status", "create", "patch status"]


async def test_a_pool_is_protected_and_goes_when_its_last_block_has_gone(api: MemoryApi) -> None:
    replica = IpamReplica(api)
    api.patch(ADDRESS_POOLS, "default", {"metadata": {"finalizers": []}}, subresource="")
    add_block(api, "default-0", 0, pool="default", node="node1")
    async with replica.term():
        await replica.until(lambda: api.get(ADDRESS_POOLS, "default").metadata.finalizers == (FINALIZER,))
        api.delete(ADDRESS_POOLS, "default")
        replica.caches.look()
        api.patch(ADDRESS_BLOCKS, "default-0", {"metadata": {"finalizers": []}}, subresource="")
        api.delete(ADDRESS_BLOCKS, "default-0")
        await replica.until(lambda: api.find(ADDRESS_POOLS, "default") is None)


async def test_what_a_node_left_goes_with_it(api: MemoryApi) -> None:
    replica = IpamReplica(api)
    add_block(api, "default-0", 0, pool="default", node="node1")
    async with replica.term():
        await replica.until(lambda: True)
        api.delete(NODES, "node1")
        await replica.until(lambda: not api.all(ADDRESS_BLOCKS))


async def test_a_term_begins_with_a_look_for_nodes_that_went_before(api: MemoryApi) -> None:
    replica = IpamReplica(api)
    add_request(api, "req", node="gone")
    async with replica.term():
        await replica.until(lambda: not api.all(BLOCK_REQUESTS))


async def test_a_block_that_appears_for_an_absent_node_goes_without_waiting_for_the_sweep(api: MemoryApi) -> None:
    replica = IpamReplica(api)
    async with replica.term():
        await replica.until(lambda: True)
        add_block(api, "default-0", 0, pool="default", node="gone")
        await replica.until(lambda: not api.all(ADDRESS_BLOCKS))
