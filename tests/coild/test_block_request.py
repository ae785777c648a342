"""One request per pool at a time, whoever waits, whatever the API server and the controller do."""

import asyncio
import random
from collections.abc import Callable

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import NODES
from coil.crd.names import LABEL_NODE, BlockName, PoolName
from coil.kube.errors import ApiError, ForbiddenError, UnavailableError
from coild.address_source import AddressUnavailableError
from coild.block_request import ANSWER_TIMEOUT, BLOCK_TIMEOUT
from tests.coil_ipam_controller.memory_api import Call, Moment
from tests.coild.block_granter import NODE, grant
from tests.coild.scene import Coild, World, now, settle
from tests.coild.virtual_loop import pass_turns

DEFAULT, SECOND, TINY = PoolName("default"), PoolName("second"), PoolName("tiny")


def count(coild: Coild, verb: str) -> int:
    return sum((call.verb, call.plural) == (verb, "blockrequests") for call in coild.client.calls)


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


async def fail(coild: Coild, pool: PoolName = DEFAULT) -> str:
    with pytest.raises(AddressUnavailableError) as caught:
        await coild.requester.request(pool)
    return str(caught.value)


async def test_a_request_brings_a_block_and_leaves_no_request(world: World, coild: Coild) -> None:
    await coild.requester.request(DEFAULT)
    assert [str(network) for network in coild.store.networks()] == ["10.1.0.0/31", "fd01::/127"]
    await settle()
    assert world.requests == []


async def test_the_request_is_owned_by_the_node_of_today(world: World, coild: Coild) -> None:
    world.granter.away = True
    task = coild.spawn(coild.requester.request(DEFAULT))
    await pass_turns()
    (request,) = world.api.all(BLOCK_REQUESTS)
    (owner,) = request.metadata.owner_references
    node = world.api.get(NODES, NODE)
    assert (owner.api_version, owner.kind, owner.name, owner.uid) == ("v1", "Node", NODE, node.metadata.uid)
    assert not owner.controller
    assert request.metadata.labels == {LABEL_NODE: NODE}
    assert (request.spec.node_name, request.spec.pool_name) == (NODE, DEFAULT)
    assert request.metadata.name.startswith(f"req-{NODE}-")
    task.cancel()


async def test_waiters_for_one_pool_share_a_request_those_of_two_pools_do_not(coild: Coild) -> None:
    coild.world.granter.delay = lambda: 3.0
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(coild.requester.request(DEFAULT))
            group.create_task(coild.requester.request(SECOND))
    assert count(coild, "create") == 2
    assert sorted(coild.world.blocks) == ["default-0", "second-0"]


async def test_an_answer_that_comes_before_the_create_call_returns_is_seen(coild: Coild) -> None:
    coild.gate.delay = lambda: 5.0  # before and after: the answer is in the cache for five seconds already
    await coild.requester.request(DEFAULT)
    assert now() == 20, "two calls there and back, and no wait after them"


async def test_an_answer_to_an_older_request_of_the_name_is_not_ours(world: World, coild: Coild) -> None:
    coild.requester.rng = random.Random(7)
    name = f"req-{NODE}-{random.Random(7).getrandbits(32):08x}"
    world.granter.away = True
    body = {"metadata": {"name": name, "labels": {LABEL_NODE: NODE}}, "spec": {"nodeName": NODE, "poolName": "default"}}
    old = world.api.create(BLOCK_REQUESTS, body)
    grant(world.api, old, BlockName("default-99"))
    await settle()
    coild.request_source.delay = lambda: 2.0
    world.api.delete(BLOCK_REQUESTS, name)
    task = coild.spawn(coild.requester.request(DEFAULT))
    await pass_turns()
    cached = coild.requests.get(name)
    assert cached is not None
    assert cached.uid == old.uid, "the cache still shows the older one, granted"
    assert not task.done()
    await settle(5)
    assert not task.done(), "now it shows ours, pending"
    world.granter.wake()
    await task
    assert world.blocks == ["default-0"]


async def test_a_refusal_names_the_pool_and_the_reason(world: World, coild: Coild) -> None:
    await coild.add("c1", "den")
    message = await fail(coild, TINY)
    assert "tiny" in message
    assert "out of blocks" in message
    assert await fail(coild, PoolName("nowhere")) != message
    await settle()
    assert world.requests == []


async def test_a_dry_pool_makes_no_storm(coild: Coild) -> None:
    await coild.add("c1", "den")
    before = count(coild, "create")
    created: list[float] = []
    while now() < 60:
        await asyncio.gather(*(fail(coild, TINY) for _ in range(3)))
        if count(coild, "create") > before + len(created):
            created.append(round(now(), 1))
        await asyncio.sleep(0.1)
    # Backoff 1, 2, 4, 8, 16, 30 seconds; a try in the first tenth of a second after it has passed.
    assert len(created) == 6
    for time, earliest in zip(created, (0, 1, 3, 7, 15, 31), strict=True):
        assert earliest <= time <= earliest + 1


async def test_after_a_success_the_backoff_begins_anew(world: World, coild: Coild) -> None:
    coild.gate.fault = faults("create", UnavailableError("away"), times=3)
    for wait in (1, 2, 4):
        await fail(coild)
        await asyncio.sleep(wait)
    await coild.requester.request(DEFAULT)
    coild.gate.fault = faults("create", UnavailableError("away"))
    await fail(coild)
    await asyncio.sleep(1)
    await coild.requester.request(DEFAULT)
    assert sorted(world.blocks) == ["default-0", "default-1"]


async def test_one_dry_pool_does_not_stand_in_the_way_of_another(coild: Coild) -> None:
    await fail(coild, PoolName("nowhere"))
    await coild.requester.request(DEFAULT)


async def test_with_the_controller_away_one_request_stays_until_it_is_taken_back(world: World, coild: Coild) -> None:
    world.granter.away = True
    task = coild.spawn(coild.requester.request(DEFAULT))
    await settle(ANSWER_TIMEOUT - 1)
    for _ in range(10):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(coild.requester.request(DEFAULT), 0.05)
    assert count(coild, "create") == 1
    assert len(world.requests) == 1
    with pytest.raises(AddressUnavailableError, match=r"default.*coil-ipam-controller"):
        await task
    await settle()
    assert world.requests == []
    await asyncio.sleep(1)
    world.granter.away = False
    await coild.requester.request(DEFAULT)


@pytest.mark.parametrize("error", [UnavailableError("away"), ForbiddenError("no", status=403)])
async def test_an_error_of_the_api_server_is_an_answer_too(coild: Coild, error: ApiError) -> None:
    coild.gate.fault = faults("create", error)
    message = await fail(coild)
    assert "default" in message
    assert str(error) in message
    assert await fail(coild) == message
    assert count(coild, "create") == 1
    await asyncio.sleep(1)
    await coild.requester.request(DEFAULT)


async def test_a_node_that_the_api_server_does_not_know_gets_nothing(world: World, coild: Coild) -> None:
    world.api.delete(NODES, NODE)
    assert "default" in await fail(coild)
    assert count(coild, "create") == 0


async def test_a_creation_whose_answer_was_lost_leaves_neither_request_nor_block(world: World, coild: Coild) -> None:
    coild.gate.fault = faults("create", UnavailableError("reset"), moment=Moment.AFTER)
    await fail(coild)
    await settle()
    assert len(world.requests) == 1
    assert world.blocks == ["default-0"], "granted to nobody, but it is this node's"
    await coild.source.collect()
    await settle(1)
    assert world.requests == []
    await settle(20)
    assert world.blocks == []


async def test_a_block_that_is_granted_and_does_not_come_ends_the_wait(world: World, coild: Coild) -> None:
    world.granter.away = True
    task = coild.spawn(coild.requester.request(DEFAULT))
    await pass_turns()
    (request,) = world.api.all(BLOCK_REQUESTS)
    grant(world.api, request, BlockName("default-5"))
    with pytest.raises(AddressUnavailableError, match="default-5"):
        await task
    assert now() == BLOCK_TIMEOUT


async def test_the_block_may_come_after_the_answer(world: World, coild: Coild) -> None:
    coild.block_source.delay = lambda: 7.0
    await coild.requester.request(DEFAULT)
    assert now() == 7


async def test_nobody_waits_for_the_deletion_of_the_request(world: World, coild: Coild) -> None:
    coild.gate.fault = lambda call, moment: (
        setattr(coild.gate, "delay", lambda: 20.0) if call.verb == "create" else None
    )
    await coild.requester.request(DEFAULT)
    assert now() == 20, "the answer to the creation, and nothing on top"
    await settle(40)
    assert world.requests == []


async def test_a_request_that_could_not_be_deleted_is_deleted_later(world: World, coild: Coild) -> None:
    coild.gate.fault = faults("delete", UnavailableError("away"))
    await coild.requester.request(DEFAULT)
    await settle()
    assert len(world.requests) == 1
    await coild.requester.discard_stale()
    assert world.requests == []


async def test_a_request_that_is_waited_for_is_not_stale(world: World, coild: Coild) -> None:
    world.granter.away = True
    coild.gate.delay = lambda: 1.0
    task = coild.spawn(coild.requester.request(DEFAULT))
    for _ in range(8):
        await asyncio.sleep(0.5)
        await coild.requester.discard_stale()
    assert len(world.requests) == 1
    world.granter.wake()
    await task


async def test_failing_to_discard_is_no_failure(world: World, coild: Coild) -> None:
    world.granter.away = True
    for number in range(2):
        body = {
            "metadata": {"name": f"r{number}", "labels": {LABEL_NODE: NODE}},
            "spec": {"nodeName": NODE, "poolName": "p"},
        }
        world.api.create(BLOCK_REQUESTS, body)
    await settle()
    coild.gate.fault = faults("delete", UnavailableError("away"))
    await coild.requester.discard_stale()
    assert world.requests == ["r0"], "one failed, the other did not wait for it"


async def test_a_caller_that_gives_up_leaves_the_request_to_the_others(world: World, coild: Coild) -> None:
    world.granter.delay = lambda: 5.0
    first = coild.spawn(coild.requester.request(DEFAULT))
    second = coild.spawn(coild.requester.request(DEFAULT))
    await settle(1)
    first.cancel()
    await second
    assert first.cancelled()
    assert count(coild, "create") == 1


async def test_a_block_for_callers_who_all_gave_up_is_adopted_and_used_by_the_next(world: World, coild: Coild) -> None:
    world.granter.delay = lambda: 5.0
    task = coild.spawn(coild.requester.request(DEFAULT))
    await settle(1)
    task.cancel()
    await settle(5)
    assert await coild.add("c1") == ["10.1.0.0", "fd01::"]
    assert count(coild, "create") == 1


async def test_nobody_hears_of_a_failure_for_callers_who_all_gave_up(world: World, coild: Coild) -> None:
    """An exception that nobody retrieves would be reported when its task is collected, and fail this test."""
    world.granter.delay = lambda: 5.0
    task = coild.spawn(coild.requester.request(PoolName("nowhere")))
    await settle(1)
    task.cancel()
    await settle(4.5)
    assert "nowhere" in await fail(coild, PoolName("nowhere"))
    assert count(coild, "create") == 1


async def test_a_request_that_somebody_deletes_ends_the_wait(world: World, coild: Coild) -> None:
    world.granter.away = True
    task = coild.spawn(coild.requester.request(DEFAULT))
    await pass_turns()
    world.api.delete(BLOCK_REQUESTS, world.requests[0])
    with pytest.raises(AddressUnavailableError, match="deleted before"):
        await task
    assert now() == 0


async def test_closing_ends_what_is_under_way_and_leaves_the_request_to_the_next_process(
    world: World, coild: Coild
) -> None:
    world.granter.away = True
    task = coild.spawn(coild.requester.request(DEFAULT))
    await pass_turns()
    await coild.requester.close()
    await settle()
    assert task.done()
    assert not coild.requester.outstanding(DEFAULT)
    successor = Coild(world)
    await successor.start()
    await settle()
    assert world.requests == []
    assert world.api.all(ADDRESS_BLOCKS) == []
    await successor.kill()
