"""Collection of what absent nodes have left."""

from dataclasses import replace

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import NODES
from coil.kube.errors import ConflictError, UnavailableError
from coil.reconcile.controller import DONE, RequeueAfter
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient, Moment
from tests.coil_ipam_controller.scene import SETTINGS, Life, add_block, add_node, add_request


@pytest.fixture
def api() -> MemoryApi:
    api = MemoryApi()
    add_node(api, "alive")
    add_node(api, "gone")
    for index, node in enumerate(["alive", "gone", "gone"]):
        add_block(api, f"default-{index}", index, pool="default", node=node)
        add_request(api, f"req-{index}", node=node)
    api.delete(NODES, "gone")
    return api


def names(api: MemoryApi) -> list[str]:
    return [item.name for item in api.all(ADDRESS_BLOCKS)] + [item.metadata.name for item in api.all(BLOCK_REQUESTS)]


async def test_blocks_and_requests_of_an_absent_node_go(api: MemoryApi) -> None:
    life = Life(MemoryClient(api))
    assert life.nodes.absent_nodes() == {"gone"}
    assert await life.nodes.reconcile("gone") == DONE
    assert names(api) == ["default-0", "req-0"]
    life.caches.look()
    assert life.nodes.absent_nodes() == set()


async def test_a_node_that_is_there_keeps_everything_at_no_cost(api: MemoryApi) -> None:
    life = Life(MemoryClient(api))
    await life.nodes.reconcile("alive")
    await life.nodes.reconcile("never heard of")
    assert life.client.calls == []
    assert len(names(api)) == 6


async def test_an_absence_that_only_the_cache_believes_in_is_none(api: MemoryApi) -> None:
    life = Life(MemoryClient(api))
    add_node(api, "gone")
    assert await life.nodes.reconcile("gone") == DONE
    assert len(names(api)) == 6


async def test_no_answer_is_no_absence(api: MemoryApi) -> None:
    async def fail(call: Call, moment: Moment) -> None:
        raise UnavailableError("no route to host")

    life = Life(MemoryClient(api, fail))
    with pytest.raises(UnavailableError):
        await life.nodes.reconcile("gone")
    assert len(names(api)) == 6


async def test_reserved_blocks_stay(api: MemoryApi) -> None:
    add_block(api, "default-7-v1", 7, pool="default", node="gone", reserved="true")
    life = Life(MemoryClient(api))
    await life.nodes.reconcile("gone")
    assert names(api) == ["default-0", "default-7-v1", "req-0"]
    life.caches.look()
    assert life.nodes.absent_nodes() == set()


async def test_finalizers_of_others_are_respected(api: MemoryApi) -> None:
    finalizers = ["example.com/audit", "coil.cybozu.com"]
    api.patch(ADDRESS_BLOCKS, "default-1", {"metadata": {"finalizers": finalizers}}, subresource="")
    life = Life(MemoryClient(api))
    await life.nodes.reconcile("gone")
    block = api.get(ADDRESS_BLOCKS, "default-1")
    assert block.metadata.deleting
    assert block.metadata.finalizers == ("example.com/audit",)


async def test_a_namesake_of_a_collected_block_is_left_alone(api: MemoryApi) -> None:
    """The cache shows the block of the absent node; by now another node has a block of that name."""
    life = Life(MemoryClient(api))
    api.delete(ADDRESS_BLOCKS, "default-1")
    api.patch(ADDRESS_BLOCKS, "default-1", {"metadata": {"finalizers": []}}, subresource="")
    add_block(api, "default-1", 1, pool="default", node="alive")
    with pytest.raises(ConflictError):
        await life.nodes.reconcile("gone")
    assert api.get(ADDRESS_BLOCKS, "default-1").node == "alive"
    assert not api.get(ADDRESS_BLOCKS, "default-1").metadata.deleting


async def test_a_block_replaced_between_deletion_and_release_is_left_alone(api: MemoryApi) -> None:
    async def replace(call: Call, moment: Moment) -> None:
        if (call.verb, call.name, moment) == ("delete", "default-1", Moment.AFTER):
            api.patch(ADDRESS_BLOCKS, "default-1", {"metadata": {"finalizers": []}}, subresource="")
            add_block(api, "default-1", 1, pool="default", node="alive")

    life = Life(MemoryClient(api, replace))
    await life.nodes.reconcile("gone")
    assert api.get(ADDRESS_BLOCKS, "default-1").node == "alive"
    assert api.get(ADDRESS_BLOCKS, "default-1").metadata.finalizers


@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("number", range(1, 9))
async def test_death_at_any_call(api: MemoryApi, number: int, moment: Moment) -> None:
    async def fail(call: Call, at: Moment) -> None:
        if len(first.client.calls) == number + 1 and at is moment:
            raise UnavailableError("here")

    first = Life(MemoryClient(api, fail))
    with pytest.raises(UnavailableError):
        await first.nodes.reconcile("gone")
    second = Life(MemoryClient(api))
    for node in second.nodes.absent_nodes():
        await second.nodes.reconcile(node)
    assert names(api) == ["default-0", "req-0"]


GRACE = 15
PATIENT = replace(SETTINGS, node_grace=GRACE)


async def test_an_absence_must_last(api: MemoryApi) -> None:
    life = Life(MemoryClient(api), PATIENT)
    assert await life.nodes.reconcile("gone") == RequeueAfter(GRACE)
    life.wait(GRACE - 1)
    assert await life.nodes.reconcile("gone") == RequeueAfter(1)
    assert life.client.calls == []
    life.wait(1)
    assert await life.nodes.reconcile("gone") == DONE
    assert names(api) == ["default-0", "req-0"]


async def test_a_node_that_registers_again_keeps_its_blocks(api: MemoryApi) -> None:
    life = Life(MemoryClient(api), PATIENT)
    await life.nodes.reconcile("gone")
    life.wait(GRACE - 1)
    node = add_node(api, "gone")
    life.caches.look()
    assert list(life.nodes.gone_nodes(None, node)) == []
    life.wait(10 * GRACE)
    assert await life.nodes.reconcile("gone") == DONE
    assert len(names(api)) == 6
    assert life.client.calls == []


async def test_each_absence_counts_for_itself(api: MemoryApi) -> None:
    """The node came and went again between two looks."""
    life = Life(MemoryClient(api), PATIENT)
    await life.nodes.reconcile("gone")
    life.wait(GRACE - 1)
    node = add_node(api, "gone")
    assert list(life.nodes.gone_nodes(None, node)) == []
    api.delete(NODES, "gone")
    assert list(life.nodes.gone_nodes(node, None)) == ["gone"]
    assert await life.nodes.reconcile("gone") == RequeueAfter(GRACE)
    assert len(names(api)) == 6


async def test_a_node_that_only_the_api_server_has_begins_its_grace_anew(api: MemoryApi) -> None:
    life = Life(MemoryClient(api), PATIENT)
    await life.nodes.reconcile("gone")
    add_node(api, "gone")
    life.wait(GRACE)
    assert await life.nodes.reconcile("gone") == DONE
    assert len(names(api)) == 6
    assert await life.nodes.reconcile("gone") == RequeueAfter(GRACE)


async def test_a_collection_that_failed_goes_on_without_another_grace(api: MemoryApi) -> None:
    async def fail_once(call: Call, moment: Moment) -> None:
        if call.verb == "delete" and moment is Moment.BEFORE and len(life.client.calls) == 2:
            raise UnavailableError("no route to host")

    life = Life(MemoryClient(api, fail_once), PATIENT)
    await life.nodes.reconcile("gone")
    life.wait(GRACE)
    with pytest.raises(UnavailableError):
        await life.nodes.reconcile("gone")
    assert await life.nodes.reconcile("gone") == DONE
    assert names(api) == ["default-0", "req-0"]
