"""Requests that were answered and never deleted by who asked."""

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import SubnetSet
from coil.crd.block_request import BLOCK_REQUESTS, Pending
from coil.kube.errors import ConflictError
from coil.reconcile.controller import DONE
from coil_ipam_controller.block_request_reconciler import DANGLING_SECONDS
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient, Moment
from tests.coil_ipam_controller.scene import Life, add_node, add_pool, add_request


@pytest.fixture
def api() -> MemoryApi:
    api = MemoryApi()
    add_node(api, "node1")
    add_pool(api, "default", SubnetSet(ipv4="10.2.0.0/27"))
    return api


async def answer(life: Life, *names: str) -> None:
    for name in names:
        add_request(life.client.api, name)
        life.caches.look()
        await life.requests.reconcile(name)
    life.caches.look()


async def test_an_answer_has_time_to_be_read(api: MemoryApi) -> None:
    life = Life(MemoryClient(api))
    await answer(life, "granted", "refused")
    life.wait(DANGLING_SECONDS - 1)
    assert life.requests.dangling() == []
    before = len(life.client.calls)
    assert await life.requests.reconcile("granted") == DONE
    assert len(life.client.calls) == before
    life.wait(1)
    assert life.requests.dangling() == ["granted", "refused"]
    for name in life.requests.dangling():
        await life.requests.reconcile(name)
        await life.requests.reconcile(name)
    assert api.all(BLOCK_REQUESTS) == []
    assert [block.name for block in api.all(ADDRESS_BLOCKS)] == ["default-0"], "the block is its node's"


async def test_one_without_an_answer_is_never_deleted(api: MemoryApi) -> None:
    add_request(api, "waits")
    life = Life(MemoryClient(api))
    life.wait(100 * DANGLING_SECONDS)
    assert life.requests.dangling() == []


async def test_a_namesake_of_a_dangling_request_is_answered(api: MemoryApi) -> None:
    async def replace(call: Call, moment: Moment) -> None:
        if (call.verb, moment) == ("delete", Moment.BEFORE):
            api.delete(BLOCK_REQUESTS, "req")
            add_request(api, "req")

    first = Life(MemoryClient(api))
    await answer(first, "req")
    second = Life(MemoryClient(api, replace))
    second.wait(DANGLING_SECONDS)
    with pytest.raises(ConflictError):
        await second.requests.reconcile("req")
    assert isinstance(api.get(BLOCK_REQUESTS, "req").outcome(), Pending)
