"""The finalizer of pools."""

import asyncio

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS, SubnetSet
from coil.crd.names import FINALIZER
from coil.kube.errors import ConflictError
from coil.reconcile.controller import DONE, RequeueAfter
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient, Moment
from tests.coil_ipam_controller.scene import Life, add_block, add_node, add_pool, add_request

V4 = SubnetSet(ipv4="10.2.0.0/24")


@pytest.fixture
def api() -> MemoryApi:
    api = MemoryApi()
    add_node(api, "node1")
    add_pool(api, "default", V4)
    return api


def set_finalizers(api: MemoryApi, *finalizers: str) -> None:
    api.patch(ADDRESS_POOLS, "default", {"metadata": {"finalizers": list(finalizers)}}, subresource="")


def remove_block(api: MemoryApi, name: str) -> None:
    api.delete(ADDRESS_BLOCKS, name)
    api.patch(ADDRESS_BLOCKS, name, {"metadata": {"finalizers": []}}, subresource="")


async def test_a_pool_gets_the_finalizer_and_keeps_those_of_others(api: MemoryApi) -> None:
    set_finalizers(api, "example.com/audit")
    life = Life(MemoryClient(api))
    assert await life.pools.reconcile("default") == DONE
    assert api.get(ADDRESS_POOLS, "default").metadata.finalizers == ("example.com/audit", FINALIZER)


async def test_a_protected_pool_costs_nothing(api: MemoryApi) -> None:
    life = Life(MemoryClient(api))
    await life.pools.reconcile("default")
    await life.pools.reconcile("never heard of")
    assert life.client.calls == []


async def test_an_invalid_pool_is_protected_as_well(api: MemoryApi) -> None:
    add_pool(api, "broken", SubnetSet(ipv4="nonsense"))
    api.patch(ADDRESS_POOLS, "broken", {"metadata": {"finalizers": []}}, subresource="")
    life = Life(MemoryClient(api))
    assert await life.pools.reconcile("broken") == DONE
    assert api.get(ADDRESS_POOLS, "broken").metadata.finalizers == (FINALIZER,)


async def test_finalizers_are_not_written_over_on_the_word_of_a_late_cache(api: MemoryApi) -> None:
    set_finalizers(api)
    life = Life(MemoryClient(api))
    set_finalizers(api, "example.com/audit")
    with pytest.raises(ConflictError):
        await life.pools.reconcile("default")
    assert api.get(ADDRESS_POOLS, "default").metadata.finalizers == ("example.com/audit",)


async def test_a_pool_goes_with_its_last_block(api: MemoryApi) -> None:
    add_block(api, "default-0", 0, pool="default", node="node1")
    api.delete(ADDRESS_POOLS, "default")
    life = Life(MemoryClient(api))
    assert await life.pools.reconcile("default") == DONE
    assert api.get(ADDRESS_POOLS, "default").metadata.deleting
    remove_block(api, "default-0")
    life.caches.look()
    assert await life.pools.reconcile("default") == DONE
    assert api.find(ADDRESS_POOLS, "default") is None


async def test_reserved_blocks_hold_their_pool_too(api: MemoryApi) -> None:
    add_block(api, "default-0-v1", 0, pool="default", node="node1", reserved="true")
    api.delete(ADDRESS_POOLS, "default")
    life = Life(MemoryClient(api))
    await life.pools.reconcile("default")
    assert api.find(ADDRESS_POOLS, "default") is not None


async def test_a_block_that_the_cache_does_not_show_yet_holds_its_pool(api: MemoryApi) -> None:
    api.delete(ADDRESS_POOLS, "default")
    life = Life(MemoryClient(api))
    add_block(api, "default-0", 0, pool="default", node="node1")
    assert isinstance(await life.pools.reconcile("default"), RequeueAfter)
    assert api.find(ADDRESS_POOLS, "default") is not None


async def test_a_block_that_is_being_created_holds_its_pool(api: MemoryApi) -> None:
    creating, go_on = asyncio.Event(), asyncio.Event()

    async def hold_the_creation(call: Call, moment: Moment) -> None:
        if call.verb == "create" and moment is Moment.BEFORE:
            creating.set()
            await go_on.wait()

    add_request(api, "req")
    life = Life(MemoryClient(api, hold_the_creation))
    answering = asyncio.create_task(life.requests.reconcile("req"))
    await creating.wait()
    api.delete(ADDRESS_POOLS, "default")
    life.caches.look()
    assert isinstance(await life.pools.reconcile("default"), RequeueAfter)
    go_on.set()
    await answering
    assert isinstance(await life.pools.reconcile("default"), RequeueAfter), "the cache does not show the block yet"
    remove_block(api, "default-0")
    assert await life.pools.reconcile("default") == DONE
    assert api.find(ADDRESS_POOLS, "default") is None
