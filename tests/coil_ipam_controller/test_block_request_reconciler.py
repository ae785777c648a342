"""Answers to block requests, in one life of the controller whose caches may be late."""

import asyncio
from collections import Counter

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS, SubnetSet
from coil.crd.block_request import BLOCK_REQUESTS, Granted, Pending, RefusalReason, Refused
from coil.crd.builtin import NODES
from coil.crd.names import FINALIZER
from coil.kube.errors import ConflictError, UnavailableError
from coil.reconcile.controller import DONE
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient, Moment
from tests.coil_ipam_controller.scene import Life, add_block, add_node, add_pool, add_request, granted

V4 = SubnetSet(ipv4="10.2.0.0/24")
DUAL = SubnetSet(ipv4="10.2.0.0/24", ipv6="fd01::/120")


@pytest.fixture
def api() -> MemoryApi:
    api = MemoryApi()
    add_node(api, "node1")
    return api


async def answer(api: MemoryApi, request: str) -> Granted | Refused | Pending:
    life = Life(MemoryClient(api))
    assert await life.requests.reconcile(request) == DONE
    return api.get(BLOCK_REQUESTS, request).outcome()


async def test_a_granted_block_is_complete_from_its_birth(api: MemoryApi) -> None:
    pool = add_pool(api, "default", DUAL)
    request = add_request(api, "req")
    assert await answer(api, "req") == granted("default-0")
    block = api.get(ADDRESS_BLOCKS, "default-0")
    assert (block.index, block.ipv4, block.ipv6) == (0, "10.2.0.0/27", "fd01::/123")
    assert block.metadata.labels == {
        "coil.cybozu.com/pool": "default",
        "coil.cybozu.com/node": "node1",
        "coil.cybozu.com/request": request.uid,
    }
    assert block.metadata.finalizers == (FINALIZER,)
    (owner,) = block.metadata.owner_references
    assert (owner.api_version, owner.kind, owner.name) == ("coil.cybozu.com/v2", "AddressPool", "default")
    assert (owner.uid, owner.controller, owner.block_owner_deletion) == (pool.metadata.uid, True, True)


async def test_a_request_costs_three_writes_and_no_read(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    add_request(api, "req")
    life = Life(MemoryClient(api))
    await life.requests.reconcile("req")
    assert [call.verb for call in life.client.calls] == ["patch status", "create", "patch status"]


async def test_an_answered_request_is_left_alone(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    add_request(api, "req")
    await answer(api, "req")
    before = api.get(BLOCK_REQUESTS, "req")
    life = Life(MemoryClient(api))
    await life.requests.reconcile("req")
    await life.requests.reconcile("never heard of")
    assert life.client.calls == []
    assert api.get(BLOCK_REQUESTS, "req") == before


async def test_late_caches_lead_to_a_conflict_and_not_to_a_second_block(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    add_request(api, "req")
    life = Life(MemoryClient(api))
    await life.requests.reconcile("req")
    with pytest.raises(ConflictError):  # the cache still shows the request as it was
        await life.requests.reconcile("req")
    assert [block.name for block in api.all(ADDRESS_BLOCKS)] == ["default-0"]


async def test_the_lowest_free_index_is_taken(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    for index in (0, 1, 3):
        add_block(api, f"default-{index}", index, pool="default", node="node1")
    add_request(api, "req")
    assert await answer(api, "req") == granted("default-2")


async def test_an_index_of_a_reserved_block_is_taken_though_its_name_is_free(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    add_block(api, "default-0-v1", 0, pool="default", node="node1", reserved="true")
    add_request(api, "req")
    assert await answer(api, "req") == granted("default-1")


async def test_blocks_that_the_cache_does_not_show_are_stepped_over(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    add_request(api, "req")
    life = Life(MemoryClient(api))
    for index in range(3):
        add_block(api, f"default-{index}", index, pool="default", node="node2", request="other")
    await life.requests.reconcile("req")
    assert api.get(BLOCK_REQUESTS, "req").outcome() == granted("default-3")


async def test_a_block_made_by_a_controller_without_promises_is_found(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    request = add_request(api, "req")
    add_block(api, "default-6", 6, pool="default", node="node1", request=request.uid)
    assert await answer(api, "req") == granted("default-6")
    assert len(api.all(ADDRESS_BLOCKS)) == 1


async def test_a_block_that_is_going_is_no_answer(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    request = add_request(api, "req")
    add_block(api, "default-0", 0, pool="default", node="node1", request=request.uid)
    api.delete(ADDRESS_BLOCKS, "default-0")
    assert await answer(api, "req") == granted("default-1")


async def test_a_promise_is_kept_even_where_a_late_cache_shows_its_index_as_taken(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    add_block(api, "default-0", 0, pool="default", node="node2", request="other")
    request = add_request(api, "req")
    api.patch(BLOCK_REQUESTS, "req", {"status": {"addressBlockName": "default-0"}}, subresource="status")
    life = Life(MemoryClient(api))
    api.patch(ADDRESS_BLOCKS, "default-0", {"metadata": {"finalizers": []}}, subresource="")
    api.delete(ADDRESS_BLOCKS, "default-0")
    await life.requests.reconcile("req")
    assert api.get(BLOCK_REQUESTS, "req").outcome() == granted("default-0")
    assert api.get(ADDRESS_BLOCKS, "default-0").request == request.uid


@pytest.mark.parametrize("promise", ["default-1", "default-99", "default-x", "other-0", "../pods", "default-01"])
async def test_a_promise_that_cannot_be_kept_is_replaced(api: MemoryApi, promise: str) -> None:
    add_pool(api, "default", V4)
    add_block(api, "default-1", 1, pool="default", node="node2", request="other")
    add_request(api, "req")
    api.patch(BLOCK_REQUESTS, "req", {"status": {"addressBlockName": promise}}, subresource="status")
    assert await answer(api, "req") == granted("default-0")


async def test_a_promise_of_what_an_older_pool_has_is_replaced(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    add_pool(api, "late", SubnetSet(ipv4="10.2.0.0/23"))
    add_request(api, "req", pool="late")
    api.patch(BLOCK_REQUESTS, "req", {"status": {"addressBlockName": "late-3"}}, subresource="status")
    assert await answer(api, "req") == granted("late-8")


async def test_refusals_say_why(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    add_pool(api, "full", SubnetSet(ipv4="10.3.0.0/27"))
    add_pool(api, "broken", SubnetSet(ipv4="10.4.0.0/33"))
    add_pool(api, "overlapping", SubnetSet(ipv4="10.2.0.128/25"))
    add_pool(api, "dying", SubnetSet(ipv4="10.5.0.0/24"))
    api.delete(ADDRESS_POOLS, "dying")
    add_block(api, "full-0", 0, pool="full", node="node1")
    wanted = {
        ("nowhere", "default"): (RefusalReason.NO_SUCH_NODE, "there is no node 'nowhere'"),
        ("n" * 64, "default"): (RefusalReason.INVALID_NODE, "does not fit into a label"),
        ("../../x", "default"): (RefusalReason.NO_SUCH_NODE, "there is no node"),
        ("node1", "nothing"): (RefusalReason.NO_SUCH_POOL, "there is no address pool 'nothing'"),
        ("node1", "a/b"): (RefusalReason.NO_SUCH_POOL, "there is no address pool 'a/b'"),
        ("node1", "full"): (RefusalReason.OUT_OF_BLOCKS, "all 1 blocks of the pool 'full' are in use"),
        ("node1", "dying"): (RefusalReason.OUT_OF_BLOCKS, "the pool 'dying' is being deleted"),
        ("node1", "broken"): (RefusalReason.INVALID_POOL, "spec.subnets[0].ipv4: '10.4.0.0/33' is not a network"),
        ("node1", "overlapping"): (RefusalReason.INVALID_POOL, "overlaps 10.2.0.0/24 of the pool 'default'"),
    }
    for number, ((node, pool), (reason, message)) in enumerate(wanted.items()):
        add_request(api, f"req-{number}", node=node, pool=pool)
        outcome = await answer(api, f"req-{number}")
        assert isinstance(outcome, Refused)
        assert outcome.reason == reason
        assert message in outcome.message
        conditions = api.get(BLOCK_REQUESTS, f"req-{number}").status.conditions
        assert [(item.type, item.status) for item in conditions] == [("Failed", "True"), ("Complete", "True")]
    assert len(api.all(ADDRESS_BLOCKS)) == 1


async def test_of_two_overlapping_pools_the_older_one_works_on(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    add_pool(api, "overlapping", V4)
    add_request(api, "req")
    assert await answer(api, "req") == granted("default-0")


async def test_a_refusal_is_not_given_on_the_word_of_a_late_cache(api: MemoryApi) -> None:
    life = Life(MemoryClient(api))
    add_request(api, "req", node="node2")
    life.caches.requests.look()
    add_node(api, "node2")
    add_pool(api, "default", V4)
    await life.requests.reconcile("req")
    assert api.get(BLOCK_REQUESTS, "req").outcome() == granted("default-0")


async def test_a_pool_that_has_grown_is_noticed_before_a_refusal(api: MemoryApi) -> None:
    add_pool(api, "default", SubnetSet(ipv4="10.2.0.0/27"))
    add_block(api, "default-0", 0, pool="default", node="node1")
    add_request(api, "req")
    life = Life(MemoryClient(api))
    subnets = [{"ipv4": "10.2.0.0/27"}, {"ipv4": "10.2.1.0/27"}]
    api.patch(ADDRESS_POOLS, "default", {"spec": {"subnets": subnets}}, subresource="")
    await life.requests.reconcile("req")
    assert api.get(ADDRESS_BLOCKS, "default-1").ipv4 == "10.2.1.0/27"


async def test_nothing_is_created_for_a_request_that_has_gone(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    add_request(api, "req")
    life = Life(MemoryClient(api))
    api.delete(BLOCK_REQUESTS, "req")
    assert await life.requests.reconcile("req") == DONE
    assert api.all(ADDRESS_BLOCKS) == []
    add_request(api, "again")
    life.caches.look()
    await life.requests.reconcile("again")
    assert api.get(BLOCK_REQUESTS, "again").outcome() == granted("default-0"), "the index is free again"


async def test_a_request_that_goes_before_its_answer_is_no_failure(api: MemoryApi) -> None:
    async def delete_after_creation(call: Call, moment: Moment) -> None:
        if call.verb == "create" and moment is Moment.AFTER:
            api.delete(BLOCK_REQUESTS, "req")

    add_pool(api, "default", V4)
    add_request(api, "req")
    life = Life(MemoryClient(api, delete_after_creation))
    assert await life.requests.reconcile("req") == DONE
    assert [block.name for block in api.all(ADDRESS_BLOCKS)] == ["default-0"], "its node adopts or collects it"


async def test_a_namesake_of_a_deleted_request_is_another_request(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    add_request(api, "req")
    life = Life(MemoryClient(api))
    api.delete(BLOCK_REQUESTS, "req")
    add_request(api, "req")
    with pytest.raises(ConflictError):
        await life.requests.reconcile("req")
    assert api.all(ADDRESS_BLOCKS) == []


async def test_200_concurrent_requests_over_3_pools_get_200_blocks(api: MemoryApi) -> None:
    async def give_way(call: Call, moment: Moment) -> None:
        await asyncio.sleep(0)

    pools = ["pool0", "pool1", "pool2"]
    for number, pool in enumerate(pools):
        add_pool(api, pool, SubnetSet(ipv4=f"10.{number}.0.0/16"))
    names = [f"req-{number}" for number in range(200)]
    for number, name in enumerate(names):
        add_request(api, name, pool=pools[number % 3])
    life = Life(MemoryClient(api, give_way))
    await asyncio.gather(*(life.requests.reconcile(name) for name in names))

    outcomes = [api.get(BLOCK_REQUESTS, name).outcome() for name in names]
    granted = {outcome.block for outcome in outcomes if isinstance(outcome, Granted)}
    blocks = api.all(ADDRESS_BLOCKS)
    assert len(granted) == len(blocks) == 200
    assert Counter(block.pool for block in blocks) == {"pool0": 67, "pool1": 67, "pool2": 66}
    assert {block.index for block in blocks} == set(range(67)), "no index was skipped"
    assert len(life.client.calls) == 600, "no name was tried in vain"


async def test_a_creation_of_unknown_outcome_keeps_its_index_from_others(api: MemoryApi) -> None:
    async def lose_the_answer(call: Call, moment: Moment) -> None:
        if call.verb == "create" and moment is Moment.AFTER:
            life.client.gate = go_on
            raise UnavailableError("connection reset")

    async def go_on(call: Call, moment: Moment) -> None:
        pass

    add_pool(api, "default", V4)
    add_request(api, "first")
    add_request(api, "second")
    life = Life(MemoryClient(api, lose_the_answer))
    with pytest.raises(UnavailableError):
        await life.requests.reconcile("first")
    await life.requests.reconcile("second")
    life.caches.requests.look()
    await life.requests.reconcile("first")
    assert api.get(BLOCK_REQUESTS, "first").outcome() == granted("default-0")
    assert api.get(BLOCK_REQUESTS, "second").outcome() == granted("default-1")
    assert len(api.all(ADDRESS_BLOCKS)) == 2


async def test_a_reconcile_reads_the_node_when_the_cache_lacks_it(api: MemoryApi) -> None:
    add_pool(api, "default", V4)
    add_request(api, "req", node="late")
    life = Life(MemoryClient(api))
    add_node(api, "late")
    await life.requests.reconcile("req")
    assert Call("get", NODES.plural, "late") in life.client.calls
    assert api.get(BLOCK_REQUESTS, "req").outcome() == granted("default-0")
