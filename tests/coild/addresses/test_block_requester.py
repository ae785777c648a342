"""One request a block, whatever the API server and the controller do."""

import asyncio
import random
from collections.abc import Callable

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import NODES, Node
from coil.crd.meta import ObjectMeta
from coil.crd.names import LABEL_NODE, BlockName, PoolName
from coil.kube.errors import ApiError, ForbiddenError, UnavailableError
from coild.addresses.block_requester import ANSWER_TIMEOUT, BLOCK_TIMEOUT
from tests.coil.kube.memory_api import Call, Moment
from tests.coild.block_granter import NODE, grant
from tests.coild.scene import Coild, World, advance, now
from tests.coild.virtual_loop import pass_turns

DEFAULT, SECOND, TINY, NOWHERE = PoolName("default"), PoolName("second"), PoolName("tiny"), PoolName("nowhere")


def count(coild: Coild, verb: str, plural: str = "blockrequests") -> int:
    return sum((call.verb, call.plural) == (verb, plural) for call in coild.client.calls)


def faults(
    verb: str, error: ApiError, *, times: float = 1, moment: Moment = Moment.BEFORE
) -> Callable[..., ApiError | None]:
    """The first `times` calls of that verb on requests fail."""
    left = times

    def fault(call: Call, at: Moment) -> ApiError | None:
        nonlocal left
        if (call.verb, call.plural, at) != (verb, "blockrequests", moment) or left <= 0:
            return None
        left -= 1
        return error

    return fault


async def ask(coild: Coild, pool: PoolName = DEFAULT) -> str:
    """One request, until it is no longer outstanding; the reason if it was refused."""
    before = coild.requester.outstanding(pool)
    coild.requester.start(pool)
    while coild.requester.outstanding(pool) > before:
        await coild.changes.wait()  # the review takes the marks in the same turn of the loop
        await asyncio.sleep(0)
    refusal = coild.requester.refusals.current(pool)
    return "" if refusal is None else refusal.reason


async def test_a_request_brings_a_block_and_leaves_no_request(world: World, coild: Coild) -> None:
    assert await ask(coild) == ""
    assert [str(network) for network in coild.store.networks()] == ["10.1.0.0/31", "fd01::/127"]
    await advance()
    assert world.requests == []


async def test_requests_are_made_side_by_side(world: World, coild: Coild) -> None:
    coild.gate.delay = lambda: 0.15
    for pool in (DEFAULT, SECOND, DEFAULT, SECOND, DEFAULT):
        coild.requester.start(pool)
    assert (coild.requester.outstanding(DEFAULT), coild.requester.outstanding(SECOND)) == (3, 2)
    assert coild.requester.oldest(DEFAULT) == 0
    assert coild.requester.oldest(TINY) is None
    await advance(0.3)
    assert (coild.requester.outstanding(DEFAULT), coild.requester.outstanding(SECOND)) == (0, 0), "one round trip"
    assert sorted(world.blocks) == ["default-0", "default-1", "default-2", "second-0", "second-1"]


async def test_the_request_names_its_node_and_pool_and_belongs_to_the_node(world: World, coild: Coild) -> None:
    world.granter.away = True
    coild.requester.start(DEFAULT)
    await pass_turns()
    (request,) = world.api.all(BLOCK_REQUESTS)
    (owner,) = request.metadata.owner_references
    node = world.api.get(NODES, NODE)
    assert (owner.api_version, owner.kind, owner.name, owner.uid) == ("v1", "Node", NODE, node.metadata.uid)
    assert not owner.controller
    assert request.metadata.labels == {LABEL_NODE: NODE}
    assert (request.spec.node_name, request.spec.pool_name) == (NODE, DEFAULT)
    assert request.metadata.name.startswith(f"req-{NODE}-")


def collect_garbage(world: World) -> None:
    """As the garbage collector does: a request goes whose owner is not there, by UID."""
    node = world.api.find(NODES, NODE)
    for request in world.api.all(BLOCK_REQUESTS):
        if node is None or request.metadata.owner_references[0].uid != node.metadata.uid:
            world.api.delete(BLOCK_REQUESTS, request.metadata.name)


async def test_a_node_that_was_made_anew_gets_its_block_at_the_second_try(world: World, coild: Coild) -> None:
    world.granter.away = True
    world.api.delete(NODES, NODE)
    world.api.create(NODES, Node(metadata=ObjectMeta(name=NODE)))
    coild.requester.start(DEFAULT)
    await advance(1)
    collect_garbage(world)
    await advance(1)
    collect_garbage(world)
    assert len(world.requests) == 1, "owned by the node of today"
    world.granter.wake()
    await advance()
    assert world.blocks == ["default-0"]
    assert await ask(coild) == ""
    assert count(coild, "create") == 3, "and remembered"
    assert count(coild, "get", "nodes") == 1


async def test_a_node_that_was_removed_gets_nothing(world: World, coild: Coild) -> None:
    world.granter.away = True
    world.api.delete(NODES, NODE)
    coild.requester.start(DEFAULT)
    await advance(1)
    collect_garbage(world)
    await advance(0)
    refusal = coild.requester.refusals.current(DEFAULT)
    assert refusal is not None
    assert "node1 not found" in refusal.reason
    assert count(coild, "create") == 1


async def test_an_answer_that_comes_before_the_create_call_returns_is_seen(coild: Coild) -> None:
    coild.gate.delay = lambda: 5.0  # before and after: the answer is in the cache for five seconds already
    await ask(coild)
    assert now() == 10, "one call there and back, and no wait after it"


async def test_an_answer_to_an_older_request_of_the_name_is_not_ours(world: World, coild: Coild) -> None:
    coild.requester.rng = random.Random(7)
    name = f"req-{NODE}-{random.Random(7).getrandbits(32):08x}"
    world.granter.away = True
    body = {"metadata": {"name": name, "labels": {LABEL_NODE: NODE}}, "spec": {"nodeName": NODE, "poolName": "default"}}
    old = world.api.create(BLOCK_REQUESTS, body)
    grant(world.api, old, BlockName("default-99"))
    await advance()
    coild.request_source.delay = lambda: 2.0
    world.api.delete(BLOCK_REQUESTS, name)
    task = coild.spawn(ask(coild))
    await pass_turns()
    cached = coild.requests.get(name)
    assert cached is not None
    assert cached.uid == old.uid, "the cache still shows the older one, granted"
    assert not task.done()
    await advance(5)
    assert not task.done(), "now it shows ours, pending"
    world.granter.wake()
    assert await task == ""
    assert world.blocks == ["default-0"]


async def test_a_refusal_names_the_pool_and_the_reason(world: World, coild: Coild) -> None:
    await coild.add("c1", "den")
    message = await ask(coild, TINY)
    assert "tiny" in message
    assert "out of blocks" in message
    assert await ask(coild, NOWHERE) != message
    await advance()
    assert world.requests == []


async def test_refusals_of_requests_that_were_under_way_together_count_as_one(coild: Coild) -> None:
    coild.world.granter.delay = lambda: 0.1
    for _ in range(8):
        coild.requester.start(NOWHERE)
    await advance(1.05)
    refusal = coild.requester.refusals.current(NOWHERE)
    assert refusal is not None
    assert (refusal.attempts, refusal.until - refusal.since) == (0, 1)
    await advance(0.5)
    assert coild.requester.refusals.current(NOWHERE) is None
    await ask(coild, NOWHERE)
    refusal = coild.requester.refusals.current(NOWHERE)
    assert refusal is not None
    assert (refusal.attempts, refusal.until - refusal.since) == (1, 2)


async def test_after_a_success_the_backoff_begins_anew(world: World, coild: Coild) -> None:
    coild.gate.fault = faults("create", UnavailableError("away"), times=3)
    for wait in (1, 2, 4):
        assert await ask(coild)
        await asyncio.sleep(wait)
    assert await ask(coild) == ""
    coild.gate.fault = faults("create", UnavailableError("away"))
    await ask(coild)
    await asyncio.sleep(1)
    assert await ask(coild) == ""
    assert sorted(world.blocks) == ["default-0", "default-1"]


async def test_a_block_that_was_asked_for_before_the_refusal_does_not_lift_it(world: World, coild: Coild) -> None:
    coild.block_source.delay = lambda: 0.5
    coild.requester.start(TINY)
    await advance(0.1)
    assert "out of blocks" in await ask(coild, TINY)
    await advance(0.6)
    assert coild.store.networks(), "the pool's last block is here"
    assert coild.requester.refusals.current(TINY) is not None


async def test_with_the_controller_away_one_request_stays_until_it_is_taken_back(world: World, coild: Coild) -> None:
    world.granter.away = True
    coild.requester.start(DEFAULT)
    await advance(ANSWER_TIMEOUT - 1)
    assert (coild.requester.outstanding(DEFAULT), len(world.requests)) == (1, 1)
    await advance(1)
    assert (coild.requester.outstanding(DEFAULT), world.requests) == (0, [])
    refusal = coild.requester.refusals.current(DEFAULT)
    assert refusal is not None
    assert "coil-ipam-controller" in refusal.reason


@pytest.mark.parametrize("error", [UnavailableError("away"), ForbiddenError("no", status=403)])
async def test_an_error_of_the_api_server_is_an_answer_too(coild: Coild, error: ApiError) -> None:
    coild.gate.fault = faults("create", error)
    message = await ask(coild)
    assert "default" in message
    assert str(error) in message


async def test_a_creation_whose_answer_was_lost_leaves_neither_request_nor_block(world: World, coild: Coild) -> None:
    coild.gate.fault = faults("create", UnavailableError("reset"), moment=Moment.AFTER)
    assert await ask(coild)
    await advance()
    assert len(world.requests) == 1
    assert world.blocks == ["default-0"], "granted to nobody, but it is this node's"
    await coild.source.collect()
    await advance(1)
    assert world.requests == []
    await advance(20)
    assert world.blocks == []


async def test_a_block_that_is_granted_and_does_not_come_ends_the_wait(world: World, coild: Coild) -> None:
    world.granter.away = True
    task = coild.spawn(ask(coild))
    await pass_turns()
    (request,) = world.api.all(BLOCK_REQUESTS)
    grant(world.api, request, BlockName("default-5"))
    assert "default-5" in await task
    assert now() == BLOCK_TIMEOUT


async def test_the_block_may_come_after_the_answer(world: World, coild: Coild) -> None:
    coild.block_source.delay = lambda: 7.0
    await ask(coild)
    assert now() == 7


async def test_the_block_counts_though_the_answer_is_still_to_come(world: World, coild: Coild) -> None:
    coild.request_source.delay = lambda: 7.0
    assert await ask(coild) == ""
    assert now() == 0
    await advance(6)
    assert len(world.requests) == 1, "the controller may still write to it"
    await advance(1)
    assert world.requests == []


async def test_a_request_whose_block_is_here_and_whose_answer_never_comes_goes_in_the_end(
    world: World, coild: Coild
) -> None:
    coild.request_source.delay = lambda: 1000.0
    await ask(coild)
    await advance(BLOCK_TIMEOUT)
    assert world.requests == []


async def test_nobody_waits_for_the_deletion_of_the_request(world: World, coild: Coild) -> None:
    coild.gate.fault = lambda call, moment: (
        setattr(coild.gate, "delay", lambda: 20.0) if call.verb == "create" else None
    )
    await ask(coild)
    assert now() == 20, "the answer to the creation, and nothing on top"
    await advance(40)
    assert world.requests == []


async def test_a_request_that_could_not_be_deleted_is_deleted_later(world: World, coild: Coild) -> None:
    coild.gate.fault = faults("delete", UnavailableError("away"))
    await ask(coild)
    await advance()
    assert len(world.requests) == 1
    await coild.requester.discard_stale()
    assert world.requests == []


async def test_a_request_that_is_waited_for_is_not_stale(world: World, coild: Coild) -> None:
    world.granter.away = True
    coild.gate.delay = lambda: 1.0
    task = coild.spawn(ask(coild))
    for _ in range(8):
        await asyncio.sleep(0.5)
        await coild.requester.discard_stale()
    assert len(world.requests) == 1
    world.granter.wake()
    assert await task == ""


async def test_failing_to_discard_is_no_failure(world: World, coild: Coild) -> None:
    world.granter.away = True
    for number in range(2):
        body = {
            "metadata": {"name": f"r{number}", "labels": {LABEL_NODE: NODE}},
            "spec": {"nodeName": NODE, "poolName": "p"},
        }
        world.api.create(BLOCK_REQUESTS, body)
    await advance()
    coild.gate.fault = faults("delete", UnavailableError("away"))
    await coild.requester.discard_stale()
    assert world.requests == ["r0"], "one failed, the other did not wait for it"


async def test_a_request_that_somebody_deletes_ends_the_wait(world: World, coild: Coild) -> None:
    world.granter.away = True
    task = coild.spawn(ask(coild))
    await pass_turns()
    world.api.delete(BLOCK_REQUESTS, world.requests[0])
    assert "deleted before" in await task
    assert now() == 0
    assert count(coild, "create") == 1


async def test_closing_ends_what_is_under_way_and_leaves_the_request_to_the_next_process(
    world: World, coild: Coild
) -> None:
    world.granter.away = True
    coild.requester.start(DEFAULT)
    await pass_turns()
    await coild.demand.close()
    await advance()
    assert coild.requester.outstanding(DEFAULT) == 0
    successor = Coild(world)
    await successor.start()
    await advance()
    assert world.requests == []
    assert world.api.all(ADDRESS_BLOCKS) == []
    await successor.kill()
