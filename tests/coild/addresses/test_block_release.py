"""Blocks go back in one order: ledger, route, object, finalizer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import SubnetSet
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.names import FINALIZER, BlockName, PoolName
from coil.kube.errors import ApiError, UnavailableError
from coil.netlink.error import NetlinkError
from coil.reconcile.controller import DONE, RequeueAfter
from tests.coil.kube.memory_api import Call, Moment
from tests.coild.block_granter import pool
from tests.coild.memory_network import Step
from tests.coild.scene import ACQUIRE_TIMEOUT, COOLDOWN, Coild, World, advance, key, now
from tests.coild.virtual_loop import pass_turns

DEFAULT, ZERO = PoolName("default"), BlockName("default-0")


def known(coild: Coild) -> bool:
    return bool(coild.store.networks())


def stored(world: World) -> tuple[bool, bool]:
    """Whether the object's deletion was asked for, and whether it still has our finalizer."""
    block = world.api.get(ADDRESS_BLOCKS, ZERO)
    return block.metadata.deleting, FINALIZER in block.metadata.finalizers


async def test_the_order(world: World, coild: Coild) -> None:
    await coild.add("c1")
    await advance(1)
    steps: list[object] = []

    async def kernel(step: Step) -> None:
        if step is Step.EXPORT:
            steps.append(("route", known(coild), bool(world.exported), stored(world)))

    def api(call: Call, moment: Moment) -> None:
        if call.plural == "addressblocks" and moment is Moment.BEFORE:
            steps.append((call.verb, known(coild), bool(world.exported), stored(world)))

    coild.network.gate, coild.gate.fault = kernel, api
    await coild.delete("c1")
    await advance(2 * COOLDOWN)
    # Each step with what it found: is it in the ledger, is it announced, is it deleted, has it the finalizer?
    assert steps == [
        ("route", False, True, (False, True)),
        ("delete", False, False, (False, True)),
        ("patch", False, False, (True, True)),
    ]
    assert world.blocks == []


def carve(world: World) -> None:
    """The controller makes the block that was asked for, and dies before it says so."""
    (request,) = world.api.all(BLOCK_REQUESTS)
    world.granter.block(DEFAULT, 0, request=request.uid)


@pytest.mark.parametrize("failures", [0, 3])
async def test_a_request_whose_answer_is_still_to_come_goes_before_its_block(
    world: World, coild: Coild, failures: int
) -> None:
    """Or the next controller finds the request, no block for it, and makes a second one."""
    world.granter.away = True
    coild.requester.start(DEFAULT)
    await pass_turns()
    carve(world)
    await coild.add("c1")
    calls: list[tuple[str, str]] = []
    left = failures

    def fault(call: Call, moment: Moment) -> ApiError | None:
        nonlocal left
        if moment is Moment.BEFORE:
            calls.append((call.plural, call.verb))
        if (call.plural, call.verb) != ("blockrequests", "delete") or left == 0:
            return None
        left -= 1
        return UnavailableError("away")

    coild.gate.fault = fault
    await coild.delete("c1")
    await advance(COOLDOWN + 1)
    assert (world.requests, world.blocks) == ([], [])
    retracted = [("blockrequests", "delete")] * (failures + 1)
    assert calls[: failures + 3] == [*retracted, ("addressblocks", "delete"), ("addressblocks", "patch")]


async def test_a_request_that_the_process_before_has_left_goes_before_its_block(world: World, coild: Coild) -> None:
    world.granter.away = True
    coild.requester.start(DEFAULT)
    await pass_turns()
    await coild.kill()
    carve(world)
    successor = Coild(world)
    failed = False

    def fault(call: Call, _moment: Moment) -> ApiError | None:
        nonlocal failed
        if (call.plural, call.verb) != ("blockrequests", "delete") or failed:
            return None
        failed = True
        return UnavailableError("away")

    successor.gate.fault = fault
    await successor.start()
    await advance(COOLDOWN + 1)
    assert failed
    assert (world.requests, world.blocks) == ([], [])
    await successor.kill()


async def test_it_rests_first_and_a_pod_that_comes_soon_finds_it(world: World, coild: Coild) -> None:
    await coild.add("c1")
    await coild.delete("c1")
    creations = len(coild.client.calls)
    await advance(COOLDOWN - 1)
    assert world.blocks == [ZERO]
    await coild.add("c2")
    await advance(10 * COOLDOWN)
    assert world.blocks == [ZERO]
    assert [call.verb for call in coild.client.calls[creations:] if call.plural != "namespaces"] == []
    await coild.delete("c2")
    await advance(COOLDOWN - 1)
    assert world.blocks == [ZERO]
    await advance(2)
    assert world.blocks == []


async def test_a_rest_that_rounding_leaves_unfinished_still_ends(world: World, coild: Coild) -> None:
    start = 247.718
    rest_left = COOLDOWN - (start + COOLDOWN - start)
    assert rest_left > 0
    assert start + COOLDOWN + rest_left == start + COOLDOWN, "a pause that leads from this moment to this moment"
    await coild.add("c1")
    await advance(start - now())
    await coild.delete("c1")
    await advance(COOLDOWN + 1)
    assert world.blocks == []


async def test_an_answer_in_the_middle_of_the_rest(coild: Coild) -> None:
    await coild.add("c1")
    assert await coild.release.reconcile(ZERO) == DONE, "in use"
    await coild.delete("c1")
    await advance(4)
    assert await coild.release.reconcile(ZERO) == RequeueAfter(COOLDOWN - 4)
    assert await coild.release.reconcile("default-9") == DONE


@pytest.mark.parametrize("verb", ["delete", "patch"])
@pytest.mark.parametrize("moment", list(Moment))
async def test_every_step_is_retried(world: World, coild: Coild, verb: str, moment: Moment) -> None:
    await coild.add("c1")
    failures = 0

    def fault(call: Call, at: Moment) -> ApiError | None:
        nonlocal failures
        if (call.plural, call.verb, at) != ("addressblocks", verb, moment) or failures == 3:
            return None
        failures += 1
        return UnavailableError("away")

    coild.gate.fault = fault
    await coild.delete("c1")
    await advance(2 * COOLDOWN)
    assert failures == (1 if (verb, moment) == ("patch", Moment.AFTER) else 3), "a finished release is not repeated"
    assert world.blocks == []


async def test_nothing_is_deleted_while_the_kernel_keeps_the_route(world: World, coild: Coild) -> None:
    await coild.add("c1")
    broken = True

    async def kernel(step: Step) -> None:
        if step is Step.EXPORT and broken:
            raise NetlinkError("no")

    coild.network.gate = kernel
    await coild.delete("c1")
    await advance(3 * COOLDOWN)
    assert world.exported
    assert stored(world) == (False, True)
    broken = False
    await advance(60)
    assert (world.exported, world.blocks) == (set(), [])


async def test_another_block_that_has_taken_the_name_is_left_alone(world: World, coild: Coild) -> None:
    await coild.add("c1")
    await coild.delete("c1")
    await advance(1)
    coild.block_source.delay = lambda: 5 * COOLDOWN
    world.api.delete(ADDRESS_BLOCKS, ZERO)
    world.api.patch(ADDRESS_BLOCKS, ZERO, {"metadata": {"finalizers": []}}, subresource="")
    world.granter.block(DEFAULT, 0)
    new = world.api.get(ADDRESS_BLOCKS, ZERO)
    await advance(3 * COOLDOWN)
    assert not known(coild), "by its old ledger the node has given the block back"
    assert world.api.get(ADDRESS_BLOCKS, ZERO) == new
    await advance(2 * COOLDOWN + 2)
    assert known(coild), "the news has come, and with it the new block"
    await advance(20 * COOLDOWN)
    assert world.blocks == [], "which nobody uses"


async def test_other_finalizers_are_others_business(world: World, coild: Coild) -> None:
    await coild.add("c1")
    finalizers = [FINALIZER, "example.com/other"]
    world.api.patch(ADDRESS_BLOCKS, ZERO, {"metadata": {"finalizers": finalizers}}, subresource="")
    await coild.delete("c1")
    await advance(2 * COOLDOWN)
    block = world.api.get(ADDRESS_BLOCKS, ZERO)
    assert block.metadata.deleting
    assert block.metadata.finalizers == ("example.com/other",)


async def test_a_block_that_is_asked_back_goes_when_its_last_pod_goes(world: World, coild: Coild) -> None:
    await coild.add("c1")
    world.api.delete(ADDRESS_BLOCKS, ZERO)
    await advance(2 * COOLDOWN)
    assert stored(world) == (True, True)
    assert await coild.add("c2") == ["10.1.0.2", "fd01::2"], "of another block, though there is room in the first"
    await coild.delete("c1")
    await advance(COOLDOWN - 1)
    assert world.blocks == [ZERO, "default-1"], "its address rests: the next node would not know"
    await advance(1)
    assert world.blocks == ["default-1"]


async def test_a_reserved_block_is_never_released(world: World, coild: Coild) -> None:
    world.granter.block(DEFAULT, 0, reserved=True)
    await advance(1)
    await coild.source.collect()
    await advance(10 * COOLDOWN)
    assert stored(world) == (False, True)
    assert world.exported == {"10.1.0.0/31", "fd01::/127"}


async def test_a_crash_in_the_middle_is_finished_by_the_next_process(world: World, coild: Coild) -> None:
    await coild.add("c1")
    await coild.delete("c1")

    def crash(call: Call, moment: Moment) -> None:
        coild.gate.closed = coild.gate.closed or call.plural == "addressblocks"

    coild.gate.fault = crash
    await advance(2 * COOLDOWN)
    await coild.kill()
    assert stored(world) == (True, True)
    successor = Coild(world)
    await successor.start()
    await advance(1)
    assert (world.blocks, world.exported) == ([], set())
    await successor.kill()


async def test_a_block_that_came_too_late_for_its_pod_goes_unless_it_is_used(world: World, coild: Coild) -> None:
    world.granter.block(DEFAULT, 0)
    await advance(COOLDOWN - 1)
    assert world.blocks == [ZERO]
    await advance(2)
    assert world.blocks == []


async def test_no_block_goes_while_one_of_its_pool_is_asked_for(world: World, coild: Coild) -> None:
    world.granter.away = True
    coild.requester.start(DEFAULT)
    world.granter.block(DEFAULT, 0)
    await advance(3 * COOLDOWN)
    assert world.blocks == [ZERO]
    assert await coild.add("c1") == ["10.1.0.0", "fd01::"]


class TestWithoutCooldown:
    """A block may be released the moment it is empty, unless a pod waits: with blocks of one address."""

    @pytest.fixture
    async def world(self) -> AsyncIterator[World]:
        world = World(pool("default", SubnetSet(ipv4="10.1.0.0/30"), bits=0))
        yield world
        await world.close()

    @pytest.fixture
    async def coild(self, world: World) -> AsyncIterator[Coild]:
        coild = Coild(world, cooldown=0.0)
        await coild.start()
        yield coild
        await coild.kill()

    def take(self, coild: Coild, container: str) -> asyncio.Task[Any]:
        request = coild.request(container)
        return coild.spawn(coild.demand.take(DEFAULT, request.key, request.pod, deadline=now() + ACQUIRE_TIMEOUT))

    @pytest.mark.parametrize("turns", range(1, 6))
    async def test_an_address_that_comes_back_goes_to_the_pod_that_waits(
        self, world: World, coild: Coild, turns: int
    ) -> None:
        await self.take(coild, "c1")
        await advance()
        world.granter.away = True
        # Its name is in the queue for another reason, so that the worker is woken before the review.
        asyncio.get_running_loop().call_soon(coild.queue.add, ZERO)
        waiting = self.take(coild, "c2")
        await pass_turns(turns)
        coild.source.release(key("c1"))
        await advance()
        assert waiting.done()
        assert str(waiting.result().ipv4) == "10.1.0.0"
        assert world.blocks == [ZERO]

    @pytest.mark.parametrize("turns", range(6))
    async def test_a_block_that_arrives_goes_to_the_pod_that_waits(
        self, world: World, coild: Coild, turns: int
    ) -> None:
        world.granter.away = True
        coild.blocks.subscribe(lambda old, new: coild.queue.add(ZERO))
        waiting = self.take(coild, "c1")
        await pass_turns(turns)
        world.granter.block(DEFAULT, 0)
        await advance()
        assert waiting.done()
        assert world.blocks == [ZERO]

    async def test_a_block_that_no_pod_waits_for_goes_at_once(self, world: World, coild: Coild) -> None:
        await self.take(coild, "c1")
        coild.source.release(key("c1"))
        await advance()
        assert world.blocks == []


async def test_without_any_rest_pods_still_get_the_block_that_they_waited_for(world: World) -> None:
    coild = Coild(world, cooldown=0.0)
    await coild.start()
    assert await coild.add("c1") == ["10.1.0.0", "fd01::"]
    await coild.delete("c1")
    await advance(2)
    assert world.blocks == []
    await coild.kill()
