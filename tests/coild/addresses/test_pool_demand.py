"""Who waits, who is served, how many blocks are asked for, and what happens when there are none."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from coil.crd.address_pool import SubnetSet
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import NAMESPACES, Namespace
from coil.crd.names import PoolName
from coil.ipam.occupancy import Tally
from coil.kube.errors import ForbiddenError, UnavailableError
from coild.addresses.block_requester import SPARE_BACKOFF
from coild.addresses.pool_demand import GIVEN_EARLY, MAX_OUTSTANDING, PoolDemand
from coild.addresses.pool_source import PoolAddressSource
from coild.addresses.spare_block import SpareBlock
from coild.model.attachment import AddressUnavailableError
from tests.coild.block_granter import pool
from tests.coild.scene import ACQUIRE_TIMEOUT, COOLDOWN, Coild, World, addresses, advance, key, now

DEFAULT = PoolName("default")
WIDE = pool("default", SubnetSet(ipv4="10.1.0.0/20"), bits=5)
SMALL = pool("second", SubnetSet(ipv4="10.2.0.0/26"), bits=3)
TINY = pool("tiny", SubnetSet(ipv6="fd03::/127"))
LINGER = 10 * COOLDOWN


def made(coild: Coild, verb: str = "create", plural: str = "blockrequests") -> int:
    return sum((call.verb, call.plural) == (verb, plural) for call in coild.client.calls)


async def node(world: World, **options: Any) -> Coild:
    coild = Coild(world, **options)
    await coild.start()
    return coild


def given_early(coild: Coild) -> list[Any]:
    """What the log says of addresses that had not cooled down."""
    return [line for line in coild.logged.entries if line["event"] == GIVEN_EARLY]


@pytest.fixture
async def wide() -> AsyncIterator[Coild]:
    """A node whose pools have blocks of 32, 8 and 2 addresses."""
    world = World(WIDE, SMALL, TINY)
    coild = await node(world)
    yield coild
    await coild.kill()
    await world.close()


async def adds(coild: Coild, numbers: range, namespace: str = "apps") -> list[str]:
    """All at once; the first address of each, or "" for one that was refused."""
    results = await asyncio.gather(*(coild.add(f"{namespace}{n}", namespace) for n in numbers), return_exceptions=True)
    for result in results:
        assert isinstance(result, list | AddressUnavailableError), result
    return ["" if isinstance(result, BaseException) else result[0] for result in results]


class TestBurst:
    async def test_two_hundred_pods_on_three_cold_pools(self, wide: Coild) -> None:
        round_trip = 0.3
        wide.gate.delay = lambda: round_trip / 2
        wide.block_source.delay = wide.request_source.delay = lambda: round_trip / 2
        done: dict[str, float] = {}

        async def add(number: int) -> None:
            namespace = ("apps", "lab", "lab", "den")[number % 100 % 4] if number < 100 else "apps"
            namespace = "apps" if namespace == "den" and number > 7 else namespace
            await wide.add(f"c{number}", namespace)
            done[f"c{number}"] = now()

        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(add(number))
        assert len(wide.world.live) == 200
        pools = Counter(request.pool for request in wide.blocks.items())
        assert pools == {"default": 5, "second": 7, "tiny": 1}
        assert made(wide) == 13, "as many requests as blocks that are needed"
        assert max(done.values()) - min(done.values()) <= 2 * round_trip
        # The namespaces are read one by one here, as if no cache had them.
        assert max(done.values()) <= 4 * round_trip
        assert made(wide, "get", "addresspools") == 3, "once for each pool that several pods wait for"

    async def test_a_pool_whose_size_is_known_needs_one_wave(self, wide: Coild) -> None:
        await wide.add("first")
        await advance()
        wide.gate.delay = lambda: 0.15
        begin = now()
        before = made(wide)
        await adds(wide, range(127))
        assert made(wide) - before == 3
        assert now() - begin <= 0.3 + 0.3, "the namespace, and one round trip for all the blocks"

    async def test_a_pool_that_cannot_be_read_is_asked_for_one_block_at_a_time_until_the_first_is_here(
        self, wide: Coild
    ) -> None:
        wide.gate.fault = lambda call, moment: (
            ForbiddenError("no", status=403) if call.plural == "addresspools" else None
        )
        wide.world.granter.away = True
        calls = [wide.spawn(wide.add(f"c{n}")) for n in range(100)]
        await advance(1)
        assert made(wide) == 1
        assert made(wide, "get", "addresspools") == 1
        wide.world.granter.wake()
        await asyncio.gather(*calls)
        assert made(wide) == 4

    async def test_who_came_first_is_served_first(self, wide: Coild) -> None:
        wide.world.granter.away = True
        order: list[int] = []

        async def add(number: int) -> None:
            await wide.add(f"c{number}", "lab")
            order.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(add(number))
                await advance(0.01)
            wide.world.granter.wake()
        assert order == list(range(20))

    async def test_there_is_a_bound_to_what_is_asked_for_at_once(self) -> None:
        world = World(pool("default", SubnetSet(ipv4="10.1.0.0/24"), bits=0))
        coild = await node(world)
        world.granter.away = True
        calls = [coild.spawn(coild.add(f"c{n}")) for n in range(50)]
        await advance(1)
        assert made(coild) == len(world.requests) == MAX_OUTSTANDING
        world.granter.wake()
        await asyncio.gather(*calls)
        assert made(coild) == 50
        await coild.kill()
        await world.close()

    async def test_a_freed_and_rested_address_serves_who_waits(self, wide: Coild) -> None:
        assert all(await adds(wide, range(8), "lab"))
        wide.world.granter.away = True
        await wide.delete("lab0")
        await advance(COOLDOWN - 2)
        waiting = wide.spawn(wide.add("next", "lab"))
        await advance(2)
        assert await waiting == ["10.2.0.0"]
        await advance()
        assert len(wide.world.requests) == 1, "it was asked for"

    async def test_pods_that_gave_up_leave_no_request_behind_that_counts_for_ever(self, wide: Coild) -> None:
        wide.world.granter.away = True
        assert await adds(wide, range(3)) == ["", "", ""]
        assert made(wide) == 1
        wide.world.granter.wake()
        await advance(1)
        assert wide.world.requests == []
        assert await wide.add("next") == ["10.1.0.0"], "the block was adopted"
        assert made(wide) == 1


class TestRefused:
    async def test_a_dry_pool_makes_no_storm(self, wide: Coild) -> None:
        assert await adds(wide, range(2), "den") == ["fd03::", "fd03::1"]
        before, created = made(wide), list[float]()
        while now() < 60:
            assert await adds(wide, range(2, 4), "den") == ["", ""]
            if made(wide) > before + len(created):
                created.append(now())
            await asyncio.sleep(0.1)
        # Backoff 1, 2, 4, 8, 16, 30 seconds; a try in the first tenth of a second after it has passed.
        assert len(created) == 6
        for time, earliest in zip(created, (0, 1, 3, 7, 15, 31), strict=True):
            assert earliest <= time <= earliest + 1

    async def test_the_last_blocks_of_a_pool_serve_whom_they_can_and_the_others_are_told_why(self, wide: Coild) -> None:
        wide.world.granter.delay = lambda: 0.1
        wide.block_source.delay = lambda: 2.0  # the refusals come before the blocks
        got = await adds(wide, range(70), "lab")
        assert sum(map(bool, got)) == 64
        assert all(got[:64]), "the first ones"
        assert now() < ACQUIRE_TIMEOUT
        told = wide.recorder.told
        assert {item[:3] for item in told} == {("Pod", f"pod-of-lab{n}", "NoAddress") for n in range(64, 70)}
        assert all("second: out of blocks" in item[3] for item in told)

    async def test_when_a_pool_is_dry_an_address_that_rests_is_better_than_none(self, wide: Coild) -> None:
        await adds(wide, range(2), "den")
        await wide.delete("den0")
        await advance(1)
        await wide.delete("den1")
        assert await wide.add("c1", "den") == ["fd03::"], "the one that has rested longer"
        assert await wide.add("c2", "den") == ["fd03::1"]
        assert made(wide) == 2, "a block was asked for, once"
        assert wide.world.kernel.twice == []
        assert [(line["addresses"], line["pod"]) for line in given_early(wide)] == [
            (["fd03::"], "den/pod-of-c1"),
            (["fd03::1"], "den/pod-of-c2"),
        ]
        assert all("out of blocks" in line["reason"] for line in given_early(wide))
        assert [wait[2] for wait in wide.waits[2:]] == ["reused", "reused"]

    async def test_an_address_that_rests_waits_for_the_refusal(self, wide: Coild) -> None:
        await adds(wide, range(8), "lab")
        await wide.delete("lab0")
        assert await wide.add("c1", "lab") == ["10.2.0.8"], "of a new block"
        assert given_early(wide) == []

    async def test_one_dry_pool_does_not_stand_in_the_way_of_another(self, wide: Coild) -> None:
        assert await adds(wide, range(3), "lost") == ["", "", ""]
        assert all(await adds(wide, range(3)))

    async def test_without_the_api_server_free_addresses_are_still_given_at_once_and_others_refused_in_time(
        self, wide: Coild
    ) -> None:
        await adds(wide, range(28))
        wide.source = keep_namespaces(wide)
        wide.gate.fault = lambda call, moment: UnavailableError("away")
        before, begin = made(wide), now()
        assert sum(map(bool, await adds(wide, range(28, 40)))) == 4
        assert now() == begin
        assert sum(map(bool, await adds(wide, range(40, 60)))) == 0
        assert made(wide) - before == 1
        assert "away" in wide.recorder.told[-1][3]
        await wide.delete("apps0")
        assert await wide.add("c1") == ["10.1.0.0"], "it should rest, but there is no other"

    async def test_an_api_server_that_does_not_answer_at_all(self, wide: Coild) -> None:
        await adds(wide, range(31))
        wide.source = keep_namespaces(wide)
        wide.gate.delay = lambda: 1000.0
        begin = now()
        assert await wide.add("c1")
        assert now() == begin
        assert await adds(wide, range(40, 50)) == [""] * 10
        assert now() == begin + ACQUIRE_TIMEOUT
        assert made(wide) == 2, "the first block, and one request for all these"

    async def test_without_a_controller(self, wide: Coild) -> None:
        await adds(wide, range(31))
        await wide.delete("apps0")
        wide.world.granter.away = True
        begin = now()
        assert await wide.add("c1") == ["10.1.0.31"]
        assert now() == begin
        assert await wide.add("c2") == ["10.1.0.0"], "has rested by now"
        assert now() == begin + COOLDOWN
        assert await adds(wide, range(40, 50)) == [""] * 10
        assert now() <= begin + COOLDOWN + ACQUIRE_TIMEOUT
        assert len(wide.world.api.all(BLOCK_REQUESTS)) == 1, "no more than was needed for one pod, or ten"


class TestOverdue:
    """With a cooling period that is longer than pods wait."""

    async def test_a_pod_takes_an_address_that_rests_before_it_fails_and_those_after_it_at_once(self) -> None:
        world = World(SMALL)
        coild = await node(world, cooldown=60.0)
        await adds(coild, range(8), "lab")
        world.granter.away = True
        for number in range(3):
            await coild.delete(f"lab{number}")
        begin = now()
        assert await coild.add("c1", "lab") == ["10.2.0.0"]
        assert now() == begin + ACQUIRE_TIMEOUT
        assert await coild.add("c2", "lab") == ["10.2.0.1"]
        assert now() == begin + ACQUIRE_TIMEOUT, "nobody answers, so there is nothing to wait for"
        assert made(coild) == 2
        assert [line["reason"] for line in given_early(coild)] == [f"no block within {ACQUIRE_TIMEOUT:.0f} s"] * 2
        assert [wait[2] for wait in coild.waits[-2:]] == ["reused", "reused"]
        await coild.kill()
        await world.close()

    async def test_a_pod_that_came_later_need_not_wait_longer(self) -> None:
        world = World(SMALL)
        coild = await node(world, cooldown=60.0)
        await adds(coild, range(8), "lab")
        world.granter.away = True
        await coild.delete("lab0")
        await coild.delete("lab1")
        calls = [coild.spawn(coild.add("c1", "lab"))]
        await advance(ACQUIRE_TIMEOUT - 2)
        begin = now()
        calls.append(coild.spawn(coild.add("c2", "lab")))
        await asyncio.gather(*calls)
        assert now() == begin + 2
        await coild.kill()
        await world.close()


class TestDeadline:
    async def test_a_caller_that_waits_for_a_shorter_time_is_told_the_reason_in_time(self, wide: Coild) -> None:
        wide.world.granter.away = True
        request = wide.request("c1")
        with pytest.raises(AddressUnavailableError, match="pool default"):
            await wide.pods.add(replace(request, deadline=now() + 3))
        assert 2.5 < now() < 3

    async def test_a_caller_that_is_gone_already_still_gets_what_is_free(self, wide: Coild) -> None:
        await wide.add("c0")
        wide.source = keep_namespaces(wide)
        request = wide.request("c1")
        plan = await wide.pods.add(replace(request, deadline=now() - 1))
        assert addresses(plan) == ["10.1.0.1"]


class TestReview:
    """Reviews are scheduled by marks, and never run inside a change."""

    async def test_any_number_of_changes_at_once_cost_one_review_of_the_pool(
        self, wide: Coild, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await adds(wide, range(30))
        await advance()
        reviewed: list[PoolName] = []
        review = PoolDemand.review

        def count(self: PoolDemand, pool: PoolName) -> None:
            reviewed.append(pool)
            review(self, pool)

        monkeypatch.setattr(PoolDemand, "review", count)
        for number in range(30):
            wide.source.release(key(f"apps{number}"))
        assert reviewed == [], "a change only leaves a mark"
        await advance()
        assert reviewed.count(DEFAULT) == 1 + 1, "one for all the changes, one before the block is released"

    async def test_a_free_address_is_given_without_a_turn_of_the_event_loop(self, wide: Coild) -> None:
        await wide.add("c0")
        await advance()
        request = wide.request("c1")
        taking = wide.demand.take(DEFAULT, request.key, request.pod, deadline=now() + 1)
        with pytest.raises(StopIteration) as returned:
            taking.send(None)
        assert returned.value.value.key == request.key

    async def test_a_pod_that_stops_waiting_leaves_nothing_in_the_queue_though_the_review_fails(
        self, wide: Coild, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(self: SpareBlock, pool: PoolName, tally: Tally) -> None:
            raise RuntimeError("a defect")

        with monkeypatch.context() as patched:
            patched.setattr(SpareBlock, "note", fail)
            assert await adds(wide, range(1)) == [""], "not the pod's fault, and it is told in time"
        assert len(wide.ended) == 1, "the process ends with the error"
        assert isinstance(wide.ended[0].exception(), RuntimeError)
        assert wide.demand._queues == {}
        wide.spawn(wide.demand.run())
        assert all(await adds(wide, range(1)))


class TestGivingUp:
    async def test_an_address_that_comes_in_the_moment_of_giving_up_is_nobody_s(self, wide: Coild) -> None:
        source = wide.source
        wide.world.granter.away = True
        request = wide.request("c1")
        task = asyncio.create_task(source.acquire(request.key, request, timeout=60))
        await advance(1)

        wide.world.granter.block(DEFAULT, 0)
        await wide.changes.wait()  # the block has arrived
        await asyncio.sleep(0)
        assert wide.source.held() == {request.key}, "it was served in this turn of the loop, and does not know yet"
        assert task.cancel()
        await advance()
        assert task.cancelled()
        assert source.held() == frozenset()
        assert wide.store.tally(DEFAULT).free == 32, "and need not rest: no pod had it"

    async def test_of_two_callers_with_one_key_the_other_keeps_it(self, wide: Coild) -> None:
        wide.world.granter.away = True
        request = wide.request("c1")
        tasks = [asyncio.create_task(wide.source.acquire(request.key, request, timeout=60)) for _ in range(2)]
        await advance(1)
        tasks[0].cancel()
        wide.world.granter.wake()
        assert str((await tasks[1]).ipv4) == "10.1.0.0"
        await advance()
        assert wide.source.held() == {key("c1")}
        assert made(wide) == 1

    async def test_waits_are_reported(self, wide: Coild) -> None:
        wide.world.granter.delay = lambda: 2.0
        await wide.add("c1")
        assert wide.waits == [(DEFAULT, 2.0, "served")]
        await wide.add("c2")
        assert len(wide.waits) == 1, "it did not wait"
        await adds(wide, range(1), "lost")
        assert [wait[2] for wait in wide.waits] == ["served", "refused"]


class TestWarm:
    async def test_a_node_without_pods_holds_nothing(self) -> None:
        world = World(SMALL)
        coild = await node(world, warm=4)
        await advance(1000)
        assert (world.blocks, world.requests) == ([], [])
        await coild.kill()
        await world.close()

    async def test_the_spare_is_asked_for_before_a_pod_needs_it(self) -> None:
        world = World(SMALL)
        coild = await node(world, warm=4)
        assert all(await adds(coild, range(4), "lab"))
        await advance(1)
        assert world.blocks == ["second-0"]
        world.granter.delay = lambda: 5.0
        begin = now()
        assert all(await adds(coild, range(4, 8), "lab"))
        assert now() == begin
        await advance(6)
        assert world.blocks == ["second-0", "second-1"]
        assert made(coild) == 2
        await coild.kill()
        await world.close()

    async def test_a_cold_pool_is_asked_for_pods_and_spare_together(self) -> None:
        world = World(SMALL)
        coild = await node(world, warm=9)
        world.granter.delay = lambda: 1.0
        await coild.add("c0", "lab")
        assert made(coild) == 2
        await advance(5)
        assert world.blocks == ["second-0", "second-1"]
        await coild.kill()
        await world.close()

    async def test_pods_that_come_and_go_do_not_make_a_block_go_and_come(self) -> None:
        """At the edge of a block, by one pod or by many, faster and slower than addresses rest."""
        world = World(pool("second", SubnetSet(ipv4="10.2.0.0/24"), bits=3))
        coild = await node(world, warm=4)
        await adds(coild, range(4), "lab")
        for pods, pause in ((1, 1.0), (4, COOLDOWN * 2), (9, COOLDOWN * 4), (1, COOLDOWN * 3), (2, 0.3)):
            before, blocks, peak = made(coild), len(world.blocks), 0
            for _ in range(20):
                await adds(coild, range(100, 100 + pods), "lab")
                await advance(pause)
                peak = max(peak, len(world.blocks))
                for number in range(100, 100 + pods):
                    await coild.delete(f"lab{number}")
                await advance(pause)
            assert made(coild) - before <= max(peak - blocks, 0), f"{pods} pods, {pause} s: a block went and came"
        for number in range(4):
            await coild.delete(f"lab{number}")
        await advance(2 * LINGER)
        assert (world.blocks, world.requests) == ([], []), "a pool that no pod uses keeps nothing"
        await coild.kill()
        await world.close()

    async def test_what_is_not_needed_goes_back_and_the_spare_stays(self) -> None:
        world = World(pool("second", SubnetSet(ipv4="10.2.0.0/24"), bits=3))
        coild = await node(world, warm=4)
        await adds(coild, range(30), "lab")
        for number in range(2, 30):
            await coild.delete(f"lab{number}")
        await advance(2 * LINGER)
        assert world.blocks == ["second-0"]
        assert coild.store.tally(PoolName("second")).free == 6
        await advance(10 * LINGER)
        assert world.blocks == ["second-0"]
        await coild.kill()
        await world.close()

    async def test_a_dry_pool_is_left_alone_for_long_and_asked_at_once_when_a_pod_needs_it(self) -> None:
        world = World(TINY)
        coild = await node(world, warm=4)
        await coild.add("c0", "den")
        await advance(3600)
        attempts = made(coild)
        assert attempts <= 6 + 3600 / (SPARE_BACKOFF.cap / 2)
        assert len(coild.recorder.told) == 0, "no pod lacks anything"
        await coild.add("c1", "den")
        assert await adds(coild, range(2), "den") == ["", ""]
        assert made(coild) == attempts + 1
        await coild.kill()
        await world.close()

    async def test_the_spare_is_made_up_for_after_a_restart(self) -> None:
        world = World(SMALL)
        coild = await node(world)
        await adds(coild, range(8), "lab")
        coild = await (await coild.start_again()).start_again()
        assert world.blocks == ["second-0"]
        await coild.kill()
        warm = await node(world, warm=1)
        await advance(1)
        assert world.blocks == ["second-0", "second-1"]
        await warm.kill()
        await world.close()


def keep_namespaces(coild: Coild) -> PoolAddressSource:
    """As coild's own informer does: what was read is known without the API server."""

    async def namespace_of(name: str) -> Namespace:
        return coild.world.api.get(NAMESPACES, name)

    source = PoolAddressSource(
        store=coild.store,
        demand=coild.demand,
        requester=coild.requester,
        sizes=coild.sizes,
        namespace_of=namespace_of,
        journal=coild.journal,
        wiring=coild.source.wiring,
        log=coild.source.log,
    )
    coild.pods._source = source
    return source
