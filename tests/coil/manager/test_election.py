"""The leader election: scenarios in virtual time. Random histories are in `test_leader_history`.

In all of them `Election` fails the test at any instant at which two contenders are at work.
"""

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from coil.kube.lease_lock import Lease, LeaseSpec
from tests.coil.manager.election import TIMING, Election, Work
from tests.coil.manager.lease_server import (
    ANSWER_LOST,
    BROKEN_AFTERWARDS,
    GOOD,
    REFUSED,
    REQUEST_LOST,
    Fate,
    Network,
    good_network,
)

MARGIN = 0.1  # answers and callbacks take a few virtual milliseconds


@pytest.fixture
def election() -> Iterator[Election]:
    election = Election()
    yield election
    election.close()


def failing_from(when: float, fate: Fate, election: Election, *, only: str = "") -> Network:
    """A network that is good until `when`; then each call, or each of the name `only`, meets `fate`."""

    def network(call: str) -> Fate:
        bad = election.universe.now >= when and only in ("", call)
        return fate if bad else GOOD

    return network


def once(fate: Fate, call: str, *, number: int = 1) -> Network:
    """Call number `number` of that name meets `fate`, all others go well."""
    seen = 0

    def network(name: str) -> Fate:
        nonlocal seen
        seen += name == call
        return fate if name == call and seen == number else GOOD

    return network


class TestTerm:
    def test_the_first_takes_the_lease_and_renews_it(self, election: Election) -> None:
        only = election.contender("a")
        election.run(60)
        assert only.running
        assert only.terms == 1
        assert all(held for _, held in only.steps)
        assert only.registry.get_sample_value("leader_election_master_status", {"name": "test"}) == 1
        times = [when for when, _ in election.server.history]
        assert max(b - a for a, b in itertools.pairwise(times)) <= TIMING.retry + MARGIN
        specs = [spec for _, spec in election.server.history if spec is not None]
        assert {spec.holder_identity for spec in specs} == {"a"}
        assert {spec.acquire_time for spec in specs} == {"2001-09-09T01:46:40.000000Z"}
        assert {spec.lease_transitions for spec in specs} == {0}
        assert election.server.reads == 1, "a healthy leader needs one write a period and no read"

    def test_the_others_stand_by_and_write_nothing(self, election: Election) -> None:
        first = election.contender("a")
        election.run(1)
        others = [election.contender(name) for name in "bc"]
        election.run(120)
        assert first.running
        assert not any(other.terms for other in others)
        assert {spec.holder_identity for _, spec in election.server.history if spec} == {"a"}

    def test_work_that_is_done_gives_the_lease_to_the_next(self, election: Election) -> None:
        first = election.contender("a", work=Work(lasts=20))
        election.run(1)
        second = election.contender("b")
        election.run_until(first.task.done)
        assert first.task.result() is None
        assert election.server.lease is not None
        assert election.server.lease.spec.holder_identity == ""
        assert election.server.lease.spec.lease_duration_seconds == 1
        assert election.run_until(lambda: second.running) <= TIMING.retry + MARGIN
        assert election.server.lease.spec.lease_transitions == 1

    def test_work_that_fails_gives_the_lease_back_and_says_why(self, election: Election) -> None:
        first = election.contender("a", work=Work(lasts=20, error=ValueError("no pool")))
        election.run(1)
        second = election.contender("b")
        election.run_until(first.task.done)
        with pytest.raises(ValueError, match="no pool"):
            first.task.result()
        assert election.run_until(lambda: second.running) <= TIMING.retry + MARGIN

    def test_a_stop_awaits_the_work_and_then_gives_the_lease_back(self, election: Election) -> None:
        first = election.contender("a", work=Work(cleanup=3))
        election.run(10)
        second = election.contender("b")
        first.stop()
        assert election.run_until(lambda: not first.at_work) == pytest.approx(3, abs=MARGIN)
        election.run_until(first.task.done, limit=MARGIN)
        assert first.task.cancelled()
        assert election.run_until(lambda: second.running) <= TIMING.retry + MARGIN

    def test_further_cancellations_shorten_nothing(self, election: Election) -> None:
        first = election.contender("a", work=Work(cleanup=3))
        election.run(10)
        election.contender("b")
        for delay in (0.0, 0.5, 1.0, 2.99, 3.0, 3.005):
            election.universe.at(election.universe.now + delay, first.stop)
        election.run_until(first.task.done)
        assert first.task.cancelled()
        assert not first.at_work
        assert election.server.lease is not None
        assert election.server.lease.spec.holder_identity == ""

    def test_a_contender_that_is_stopped_while_it_waits_leaves_nothing(self, election: Election) -> None:
        election.contender("a")
        election.run(1)
        second = election.contender("b")
        election.run(10)
        second.stop()
        election.run_until(second.task.done, limit=MARGIN)
        assert second.task.cancelled()

    def test_a_contender_that_is_stopped_while_it_claims_gives_back_what_it_may_have(self, election: Election) -> None:
        first = election.contender("a", network=once(ANSWER_LOST, "create"))
        election.run(1)
        first.stop()
        election.run_until(first.task.done)
        assert election.server.lease is not None
        assert election.server.lease.spec.holder_identity == ""

    def test_lead_that_cancels_itself_is_an_error_and_no_loss(self, election: Election) -> None:
        first = election.contender("a", work=Work(lasts=5, error=None))
        election.run(1)

        def cancel_work() -> None:
            for task in asyncio.all_tasks(first.loop):
                if task.get_name() == "test-lead":
                    task.cancel()

        first.loop.deliver(cancel_work)
        election.run_until(first.task.done)
        with pytest.raises(RuntimeError, match="cancellation that nobody asked for"):
            first.task.result()


class TestCrash:
    @pytest.mark.parametrize("after", [0.3, 5.0, 17.7])
    def test_a_killed_leader_is_replaced_when_its_lease_is_over(self, election: Election, after: float) -> None:
        first = election.contender("a")
        election.run(1)
        second = election.contender("b")
        election.run(after)
        first.kill()
        silent_since = election.server.history[-1][0]
        election.run_until(lambda: second.running)
        took = election.universe.now - silent_since
        assert TIMING.lease <= took <= TIMING.lease + 2 * TIMING.retry + MARGIN

    def test_the_holders_own_duration_counts(self, election: Election) -> None:
        election.server.create(Lease(spec=LeaseSpec(holder_identity="x", lease_duration_seconds=40)))
        second = election.contender("b")
        assert election.run_until(lambda: second.running) == pytest.approx(41, abs=1 + MARGIN)

    def test_clocks_on_the_wall_are_never_read(self, election: Election) -> None:
        """A holder whose clock is a century ahead, or behind, or was never written down."""
        for stamp in ("2131-01-01T00:00:00.000000Z", "1931-01-01T00:00:00.000000Z", None, "tomorrow"):
            spec = LeaseSpec(holder_identity="x", lease_duration_seconds=15, acquire_time=stamp, renew_time=stamp)
            if election.server.lease is None:
                election.server.create(Lease(spec=spec))
            else:
                election.server.edit(spec=spec)
            waiting = election.contender(f"b{stamp}")
            assert 15 <= election.run_until(lambda waiting=waiting: waiting.running) <= 17 + MARGIN  # type: ignore[misc]
            waiting.stop()
            election.run(5)

    def test_each_renewal_differs_though_the_wall_clock_stands_still(self, election: Election) -> None:
        election.contender("a")
        election.run(60)
        stamps = [spec.renew_time for _, spec in election.server.history if spec]
        assert len(set(stamps)) == len(stamps) > 20


class TestDoubt:
    @pytest.mark.parametrize("fate", [ANSWER_LOST, BROKEN_AFTERWARDS])
    @pytest.mark.parametrize("call", ["create", "replace"])
    def test_a_claim_whose_answer_is_lost_is_no_leadership_yet(self, election: Election, call: str, fate: Fate) -> None:
        if call == "replace":
            election.server.create(Lease(spec=LeaseSpec(lease_duration_seconds=1)))
        first = election.contender("a", network=once(fate, call))
        election.run(0.5)
        assert election.server.lease is not None
        assert election.server.lease.spec.holder_identity == "a"
        assert not first.running
        assert election.run_until(lambda: first.running) <= TIMING.call + TIMING.retry + MARGIN
        acknowledged = len(election.server.history)
        assert acknowledged >= 2, "it leads by a further write, not by having read its own name"

    @pytest.mark.parametrize("fate", [ANSWER_LOST, REQUEST_LOST, REFUSED, BROKEN_AFTERWARDS])
    @pytest.mark.parametrize("call", ["replace", "read"])
    def test_one_bad_answer_does_not_end_a_term(self, election: Election, fate: Fate, call: str) -> None:
        network = once(fate, call, number=2 if call == "read" else 3)
        first = election.contender("a", network=network)
        election.run(1)
        election.contender("b")
        election.run(60)
        assert first.running
        assert first.terms == 1

    @pytest.mark.parametrize("fate", [ANSWER_LOST, REQUEST_LOST, REFUSED, BROKEN_AFTERWARDS])
    def test_a_leader_that_cannot_renew_stops_before_anybody_may_take_over(
        self, election: Election, fate: Fate
    ) -> None:
        first = election.contender("a", network=failing_from(10, fate, election), work=Work(cleanup=3.5))
        election.run(1)
        second = election.contender("b")
        election.run_until(lambda: not first.running)
        last_renewal = max(when for when, _ in election.server.history if when < 10.1)
        assert election.universe.now - last_renewal <= TIMING.renew + 3.5 + MARGIN
        assert first.loop.alive
        assert all(held for _, held in first.steps)
        if fate in (ANSWER_LOST, BROKEN_AFTERWARDS):
            return  # its writes still arrive, so it stays the holder, without daring to work
        election.run_until(lambda: second.running)
        first.store.network = good_network
        election.run(60)
        assert second.running
        assert first.terms == 1

    def test_a_leader_comes_back_when_nobody_has_taken_over(self, election: Election) -> None:
        def network(_call: str) -> Fate:
            return REQUEST_LOST if 10 <= election.universe.now < 40 else GOOD

        only = election.contender("a", network=network)
        election.run(30)
        assert not only.at_work
        election.run(20)
        assert only.running
        assert only.terms == 2

    def test_a_renewal_that_arrives_late_extends_nothing(self, election: Election) -> None:
        """The request is on its way for longer than the call may take, and is carried out then."""
        late = Fate(request=8.0)
        first = election.contender("a", network=failing_from(10, late, election, only="replace"))
        election.run(1)
        election.contender("b")
        election.run(200)
        assert all(held for _, held in first.steps)

    def test_a_renewal_counts_from_when_it_was_sent(self, election: Election) -> None:
        """Each answer takes almost as long as a call may; then none comes any more."""

        def network(call: str) -> Fate:
            if election.universe.now > 40:
                return REQUEST_LOST
            return Fate(answer=TIMING.call - 0.1) if call == "replace" else GOOD

        first = election.contender("a", network=network, work=Work(cleanup=TIMING.grace - 0.1))
        election.run(1)
        election.contender("b")
        election.run(39.5)
        assert first.running
        election.run_until(lambda: not first.running)
        arrived = max(when for when, spec in election.server.history if spec and spec.holder_identity == "a")
        assert election.universe.now - arrived <= TIMING.renew + TIMING.grace

    def test_after_a_doubt_the_lease_is_read_before_it_is_written(self, election: Election) -> None:
        calls: list[str] = []
        network = once(REFUSED, "replace", number=3)

        def noting(call: str) -> Fate:
            calls.append(call)
            return network(call)

        election.contender("a", network=noting)
        election.run(20)
        assert calls[:7] == ["read", "create", "replace", "replace", "replace", "read", "replace"]

    def test_a_note_on_the_lease_disturbs_nobody(self, election: Election) -> None:
        first = election.contender("a")
        election.run(1)
        second = election.contender("b")
        for number in range(50):
            election.run(1.3)
            election.server.edit(annotation=str(number))
        assert first.running
        assert first.terms == 1
        assert election.server.lease is not None
        election.run(5)
        assert election.server.lease.metadata.annotations == {"note": "49"}, "and is kept"
        # Nor does it keep a dead holder's lease alive.
        first.kill()
        killed = election.universe.now
        while not second.running:
            election.run(1)
            election.server.edit(annotation=str(election.universe.now))
            assert election.universe.now - killed < TIMING.lease + 3 * TIMING.retry

    def test_a_stolen_lease_ends_the_work_at_the_next_renewal(self, election: Election) -> None:
        first = election.contender("a")
        election.run(10)
        election.server.edit(spec=LeaseSpec(holder_identity="thief", lease_duration_seconds=15))
        assert election.run_until(lambda: not first.running) <= TIMING.retry + MARGIN
        election.run(60)
        assert first.running, "the thief does not renew"
        assert first.terms == 2

    def test_a_deleted_lease_stays_with_its_holder(self, election: Election) -> None:
        first = election.contender("a")
        election.run(1)
        second = election.contender("b")
        election.run(10)
        election.server.delete()
        election.run(60)
        assert first.running
        assert (first.terms, second.terms) == (1, 0)

    def test_a_deleted_lease_of_a_dead_holder_is_taken_when_its_time_is_over(self, election: Election) -> None:
        first = election.contender("a")
        election.run(1)
        second = election.contender("b")
        election.run(10)
        first.kill()
        election.server.delete()
        took = election.run_until(lambda: second.running)
        assert TIMING.lease - TIMING.retry <= took <= TIMING.lease + TIMING.retry + MARGIN

    def test_a_release_that_is_not_answered_ends_all_the_same(self, election: Election) -> None:
        first = election.contender("a")
        election.run(10)
        first.store.network = lambda _call: REQUEST_LOST
        first.stop()
        took = election.run_until(first.task.done)
        assert took <= TIMING.call + MARGIN
        assert first.task.cancelled()

    def test_a_release_is_tried_again(self, election: Election) -> None:
        first = election.contender("a")
        election.run(10)
        first.store.network = once(REFUSED, "replace")
        first.stop()
        election.run_until(first.task.done)
        assert election.server.lease is not None
        assert election.server.lease.spec.holder_identity == ""

    def test_nobody_gives_back_what_is_another_leaders(self, election: Election) -> None:
        first = election.contender("a")
        election.run(10)
        election.server.edit(spec=LeaseSpec(holder_identity="thief", lease_duration_seconds=15))
        first.stop()
        election.run_until(first.task.done)
        assert election.server.lease is not None
        assert election.server.lease.spec.holder_identity == "thief"

    def test_an_api_server_that_answers_nothing_is_asked_at_a_steady_pace(self, election: Election) -> None:
        calls = 0

        def network(_call: str) -> Fate:
            nonlocal calls
            calls += 1
            return REFUSED

        election.contender("a", network=network)
        election.run(100)
        assert 100 / TIMING.retry * 0.9 <= calls <= 100 / (TIMING.retry * 0.75) + 1


class TestTooLate:
    def test_work_that_does_not_end_dies_with_its_process_before_anybody_takes_over(self, election: Election) -> None:
        first = election.contender("a", network=failing_from(10, REQUEST_LOST, election))
        first.work.cleanup = 1e9
        election.run(1)
        second = election.contender("b")
        election.run_until(lambda: not first.loop.alive)
        assert first.fatal_reason is not None
        assert "does not end" in first.fatal_reason
        election.run_until(lambda: second.running)

    def test_a_stop_whose_work_does_not_end_gives_nothing_back(self, election: Election) -> None:
        first = election.contender("a", work=Work(cleanup=1e9))
        election.run(10)
        first.stop()
        took = election.run_until(lambda: not first.loop.alive)
        assert took == pytest.approx(TIMING.grace, abs=MARGIN)
        election.run(1)
        assert election.server.lease is not None
        assert election.server.lease.spec.holder_identity == "a"

    @pytest.mark.parametrize("seconds", [14.0, 20.0, 1000.0])
    def test_a_stuck_event_loop_is_ended_by_the_watchdog(self, election: Election, seconds: float) -> None:
        first = election.contender("a")
        election.run(1)
        second = election.contender("b")
        election.run(9)
        renewed = election.server.history[-1][0]
        first.block(seconds)
        election.run_until(lambda: not first.loop.alive)
        assert first.fatal_reason == "watchdog"
        assert election.universe.now - renewed < TIMING.lease
        election.run_until(lambda: second.running)

    def test_it_is_armed_from_the_first_moment(self, election: Election) -> None:
        first = election.contender("a")
        election.run_until(lambda: first.running)
        first.block(1000.0)
        election.run(TIMING.lease)
        assert first.fatal_reason == "watchdog"

    def test_a_fatal_end_that_only_raises_gives_nothing_back_either(self, election: Election) -> None:
        first = election.contender("a", work=Work(cleanup=1e9))
        first.immortal = True
        election.run(10)
        first.stop()
        election.run_until(first.task.done)
        with pytest.raises(RuntimeError, match="does not end"):
            first.task.result()
        assert election.server.lease is not None
        assert election.server.lease.spec.holder_identity == "a"
        first.kill()

    def test_a_short_hiccup_is_survived(self, election: Election) -> None:
        first = election.contender("a")
        election.run(1)
        election.contender("b")
        election.run(9)
        first.block(6.5)
        election.run(60)
        assert first.running
        assert first.terms == 1

    @pytest.mark.parametrize("seconds", [14.5, 15.0, 30.0, 3600.0])
    @pytest.mark.parametrize("cleanup", [0.0, 1.0])
    def test_a_process_that_wakes_too_late_does_nothing_any_more(
        self, election: Election, seconds: float, cleanup: float
    ) -> None:
        first = election.contender("a", work=Work(cleanup=cleanup))
        election.run(1)
        second = election.contender("b")
        election.run(9)
        first.suspend(seconds)
        election.run(seconds + 20)
        assert not first.loop.alive
        assert all(held for when, held in first.steps if when <= 10)
        assert not any(held for when, held in first.steps if when > 10), "no step after waking up was allowed"
        assert second.running

    def test_a_process_that_wakes_just_in_time_stops_its_work(self, election: Election) -> None:
        first = election.contender("a", work=Work(cleanup=1.0), network=failing_from(9.9, REQUEST_LOST, election))
        election.run(10)
        first.suspend(10.0)
        election.run_until(lambda: not first.at_work)
        assert first.loop.alive
        first.store.network = good_network
        election.run(30)
        assert first.running

    @pytest.mark.parametrize("seconds", [9.5, 13.5, 14.5, 100.0])
    def test_an_acknowledgement_that_comes_after_a_suspension_is_worth_nothing(
        self, election: Election, seconds: float
    ) -> None:
        first = election.contender("a", network=once(Fate(request=0.2, answer=0.2), "create"))
        election.run(0.1)
        first.suspend(seconds)
        election.run(seconds - 0.05)
        election.run_until(lambda: not first.loop.suspended)
        assert not first.running
        assert first.loop.alive, "nothing was at stake"
        election.run(10)
        assert first.running

    @pytest.mark.parametrize("rates", [(0.98, 1.02), (1.02, 0.98)])
    def test_clocks_may_run_at_different_speeds(self, election: Election, rates: tuple[float, float]) -> None:
        """Two per cent apart each way: a hundred times what a bad quartz does."""
        first = election.contender(
            "a", rate=rates[0], network=failing_from(30, REQUEST_LOST, election), work=Work(cleanup=3.9)
        )
        election.run(1)
        second = election.contender("b", rate=rates[1])
        election.run(100)
        assert second.running
        assert not first.running
