"""The renewer against a Lease in memory, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from coil.crd.meta import ObjectMeta, OwnerReference
from coil.crd.names import NodeName
from coil.eip.gateway_lease import MARGIN
from coil.kube.lease_lock import Lease, LeaseSpec
from coil_egress_agent.eip.lease_renewer import FenceTiming, LeaseDemand, LeaseRenewer, parse_lease
from coil_egress_agent.eip.metric import LeaseMetrics
from tests.coil.reconcile.lease_contract import CHECKS, Check
from tests.coil_egress_agent.eip.memory_lease import MemoryLease, Trip, spec_of
from tests.coil_egress_agent.eip.node_scene import until
from tests.coild.virtual_loop import VirtualLoop

NODE = NodeName("n1")
FENCE = 0.6
NEVER = Trip(there=1e6)
WANTED = LeaseDemand(wanted=True, gateways=frozenset({"g"}))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
async def test_the_lock_of_these_tests_keeps_the_contract(check: Check) -> None:
    lock = MemoryLease()

    async def delete() -> None:
        lock.lease = None

    await check(lock, delete)


def make_renewer(store: MemoryLease) -> LeaseRenewer:
    loop = asyncio.get_running_loop()
    return LeaseRenewer(
        store,
        node=NODE,
        timing=FenceTiming(FENCE),
        metrics=LeaseMetrics(CollectorRegistry()),
        log=structlog.wrap_logger(None, processors=[_drop]),
        clock=loop.time,
        wall=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        random=lambda: 0.5,
    )


def _drop(*_: object) -> str:
    raise structlog.DropEvent


@asynccontextmanager
async def running(store: MemoryLease, demand: LeaseDemand = WANTED) -> AsyncIterator[LeaseRenewer]:
    renewer = make_renewer(store)
    renewer.ask(demand)
    task = asyncio.create_task(renewer.run())
    try:
        yield renewer
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled(), task.exception()


async def test_nothing_is_written_while_nobody_asks() -> None:
    store = MemoryLease()
    async with running(store, LeaseDemand()) as renewer:
        await asyncio.sleep(10)
        assert renewer.idle
    assert store.calls == []


async def test_creates_the_lease_with_owner_label_and_annotations() -> None:
    store = MemoryLease()
    owner = OwnerReference(api_version="v1", kind="Node", name="n1", uid="u")
    demand = LeaseDemand(wanted=True, owners=(owner,), applied={"g": 3}, gateways=frozenset({"g"}))
    async with running(store, demand) as renewer:
        await until(lambda: renewer.term)
    assert store.lease is not None
    metadata = store.lease.metadata
    assert metadata.name == "coil-eip-n1"
    assert metadata.labels == {"coil.cybozu.com/component": "eip-gateway"}
    assert metadata.annotations == {
        "egressgateway.spidernet.io/applied": '{"g":3}',
        "egressgateway.spidernet.io/fence": "600",
    }
    assert metadata.owner_references == (owner,)
    assert (store.holder, store.term, spec_of(store.lease).lease_duration_seconds) == ("n1", 1, 1)


async def test_a_quiet_holder_writes_five_times_a_second_and_never_reads() -> None:
    store = MemoryLease()
    async with running(store) as renewer:
        await asyncio.sleep(10.05)
        assert renewer.term == 1
    assert store.calls == ["read", "create", *["replace"] * 50]
    assert len({spec_of(lease).renew_time for _, lease in store.writes}) == 51
    assert len({spec_of(lease).acquire_time for _, lease in store.writes}) == 1


async def test_the_fence_counts_from_the_sending() -> None:
    store = MemoryLease()
    async with running(store) as renewer:
        await until(lambda: renewer.term)
        store.usual = NEVER
        last = store.writes[-1][0] - store.usual.back  # when it arrived; it was sent a millisecond before
        loop = asyncio.get_running_loop()
        await until(lambda: renewer.term is None)
        sent = store.writes[-1][0] - 0.001
        assert loop.time() == pytest.approx(sent + FENCE, abs=0.002)
        assert last < loop.time()


async def test_one_lost_answer_does_not_cost_the_term() -> None:
    store = MemoryLease()
    lost: list[None] = []
    async with running(store) as renewer:
        await until(lambda: renewer.term)
        renewer.on_term(lambda: lost.append(None))
        for trip in (NEVER, Trip(answered=False), Trip(reaches=False), Trip(there=0.25)):
            store.trips.append(trip)
            await asyncio.sleep(2)
        assert renewer.term == 1
    assert not lost


async def test_a_conflict_is_read_and_the_renewal_goes_on() -> None:
    store = MemoryLease()
    async with running(store) as renewer:
        await until(lambda: renewer.term)
        store.touch()
        await asyncio.sleep(0.25)
        assert renewer.term == 1
    assert store.calls[-3:] == ["replace", "read", "replace"]


async def test_a_revoked_term_ends_at_once_and_the_next_one_is_higher() -> None:
    store = MemoryLease()
    told: list[int | None] = []
    async with running(store) as renewer:
        await until(lambda: renewer.term)
        renewer.on_term(lambda: told.append(renewer.term))
        store.revoke()
        await until(lambda: renewer.term == 2)
    assert told == [None, 2]
    assert (store.holder, store.term) == ("n1", 2)


async def test_the_same_term_goes_on_after_a_silence_that_nobody_minded() -> None:
    store = MemoryLease()
    told: list[int | None] = []
    async with running(store) as renewer:
        await until(lambda: renewer.term)
        renewer.on_term(lambda: told.append(renewer.term))
        store.usual = Trip(reaches=False)
        await asyncio.sleep(5)
        assert renewer.term is None
        store.usual = Trip()
        await until(lambda: renewer.term)
    assert told == [None, 1]


async def test_an_agent_that_starts_again_goes_on_with_its_term_and_with_what_was_applied() -> None:
    store = MemoryLease()
    async with running(store, LeaseDemand(wanted=True, applied={"g": 7}, gateways=frozenset({"g"}))) as renewer:
        await until(lambda: renewer.term)
    async with running(store, LeaseDemand(wanted=True, applied={"g": 5}, gateways=frozenset({"g", "h"}))) as renewer:
        await until(lambda: renewer.term)
        assert renewer.term == 1
        assert renewer.applied == {"g": 7}


async def test_what_was_applied_of_gateways_that_are_gone_is_forgotten() -> None:
    store = MemoryLease()
    async with running(store, LeaseDemand(wanted=True, applied={"g": 7}, gateways=frozenset({"g"}))) as renewer:
        await until(lambda: renewer.term)
        renewer.ask(LeaseDemand(wanted=True, gateways=frozenset({"h"})))
        await asyncio.sleep(0.5)
        assert renewer.applied == {}


async def test_a_deleted_lease_ends_the_term_and_no_term_is_used_twice() -> None:
    store = MemoryLease()
    async with running(store) as renewer:
        await until(lambda: renewer.term)
        store.lease = None
        await until(lambda: renewer.term == 2)
    store.lease = None
    async with running(store, LeaseDemand(wanted=True, known_term=9)) as renewer:
        await until(lambda: renewer.term)
        assert renewer.term == 10


async def test_a_lease_of_somebody_else_is_never_taken() -> None:
    store = MemoryLease()
    store.put(Lease(metadata=ObjectMeta(name="coil-eip-n1"), spec=LeaseSpec(holder_identity="n2", lease_transitions=4)))
    async with running(store) as renewer:
        await asyncio.sleep(10)
        assert renewer.term is None
        assert "n2" in renewer.trouble
    assert set(store.calls) == {"read"}


async def test_giving_back_empties_the_holder_and_keeps_the_term() -> None:
    store = MemoryLease()
    async with running(store) as renewer:
        await until(lambda: renewer.term)
        store.trips.append(Trip(answered=False))
        renewer.ask(LeaseDemand(wanted=False))
        await until(lambda: renewer.idle)
        assert renewer.term is None
        assert (store.holder, store.term) == ("", 1)
        count = len(store.calls)
        await asyncio.sleep(10)
        assert len(store.calls) == count
        renewer.ask(WANTED)
        await until(lambda: renewer.term == 2)


async def test_what_hurries_goes_out_at_once() -> None:
    store = MemoryLease()
    async with running(store) as renewer:
        await until(lambda: renewer.term)
        await asyncio.sleep(0.05)
        count = len(store.writes)
        renewer.ask(LeaseDemand(wanted=True, applied={"g": 4}, gateways=frozenset({"g"})), hurry=True)
        await asyncio.sleep(0.01)
        assert len(store.writes) == count + 1
        lease = parse_lease(store.writes[-1][1])
        assert lease is not None
        assert lease.applied == {"g": 4}


async def test_a_server_that_is_away_is_not_asked_without_a_pause() -> None:
    store = MemoryLease()
    store.usual = Trip(reaches=False)
    async with running(store):
        await asyncio.sleep(60)
    assert 30 < len(store.calls) < 120


trips = st.builds(
    Trip,
    there=st.sampled_from([0.001, 0.05, 0.2, 0.29, 0.5, 2.0]),
    back=st.sampled_from([0.001, 0.05, 0.2, 0.5]),
    reaches=st.booleans(),
    answered=st.booleans(),
)


@given(st.lists(trips, max_size=25), st.lists(st.sampled_from([0.0, 0.05, 0.3, 1.0]), max_size=12))
def test_never_held_after_a_revocation_whatever_the_network_does(
    faults: list[Trip], observation_delays: list[float]
) -> None:
    """A controller sees each change with a delay, and revokes what was silent for fence and margin since."""
    revoked: list[int] = []

    async def control(store: MemoryLease) -> None:
        delays = iter(observation_delays)
        seen, deadline = "", float("inf")
        loop = asyncio.get_running_loop()
        while True:
            lease = store.lease
            if lease is not None and lease.metadata.resource_version != seen:
                # The look is late; the deadline counts from when it was seen.
                await asyncio.sleep(next(delays, 0.0))
                seen, deadline = lease.metadata.resource_version, loop.time() + FENCE + MARGIN
            elif lease is not None and lease.spec.holder_identity and loop.time() >= deadline:
                revoked.append(lease.spec.lease_transitions)
                store.revoke()
            await asyncio.sleep(0.02)

    async def watch(renewer: LeaseRenewer, terms: list[int]) -> None:
        while True:
            term = renewer.term
            if term is not None:
                assert term not in revoked
                if not terms or terms[-1] != term:
                    terms.append(term)
            await asyncio.sleep(0.02)

    async def main() -> None:
        store = MemoryLease()
        store.trips.extend(faults)
        terms: list[int] = []
        async with running(store) as renewer:
            tasks = [asyncio.create_task(control(store)), asyncio.create_task(watch(renewer, terms))]
            await asyncio.sleep(12)
            await until(lambda: renewer.term is not None, seconds=120, step=0.1)
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, asyncio.CancelledError), result
        assert terms == sorted(set(terms))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
