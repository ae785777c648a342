import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.eni.warm_pool import (
    AssignRanges,
    CreateInterface,
    DeleteInterface,
    Demand,
    NodeLimits,
    Obstacles,
    UnassignRanges,
    WarmTargets,
    decide,
    max_addresses,
    wanted_addresses,
)
from tests.coil.eni.vpc import COOLDOWN, Vpc, key

LIMITS = NodeLimits(interfaces=3, slots=6, pods=29)
ALL = 1 << 16
COUNTS = st.none() | st.integers(0, 12)


def settle(vpc: Vpc, targets: WarmTargets, *, now: float, give_back: int = ALL, waiting: int = 0) -> int:
    """Carry out decisions until there is none; how many they were."""
    demand = Demand(waiting=waiting, range_size=vpc.range_size)
    for steps in range(200):
        step = decide(vpc.ledger.uses(now=now), targets, vpc.limits, demand, give_back=give_back)
        if step is None:
            return steps
        vpc.carry_out(step, now=now)
    raise AssertionError("no end of decisions")


def run_pods(vpc: Vpc, numbers: range, *, now: float) -> None:
    for number in numbers:
        assert vpc.ledger.acquire(key(number), version=4, now=now) is not None


def counts(vpc: Vpc, *, now: float = 0.0) -> tuple[int, int]:
    uses = vpc.ledger.uses(now=now)
    return len(uses), sum(use.held + use.free for use in uses)


class TestTargets:
    """The table of docs/aws.md, line by line."""

    @pytest.mark.parametrize(
        ("targets", "interfaces", "addresses"),
        [
            (WarmTargets(), 1, 5),
            (WarmTargets(interfaces=2), 2, 10),
            (WarmTargets(interfaces=0), 1, 0),
            (WarmTargets(ips=3), 1, 3),
            (WarmTargets(ips=7), 2, 7),
            (WarmTargets(ips=0, minimum=6), 2, 6),
            (WarmTargets(interfaces=4, max_interfaces=2), 2, 10),
            (WarmTargets(ips=40), 3, 15),
        ],
    )
    def test_an_idle_node(self, targets: WarmTargets, interfaces: int, addresses: int) -> None:
        vpc = Vpc(LIMITS)
        settle(vpc, targets, now=0.0)
        assert counts(vpc) == (interfaces, addresses)

    @pytest.mark.parametrize(
        ("targets", "interfaces", "addresses"),
        [
            (WarmTargets(), 2, 10),
            (WarmTargets(ips=3), 2, 7),
            (WarmTargets(ips=1, minimum=6), 2, 6),
            (WarmTargets(minimum=6), 2, 6),
        ],
    )
    def test_four_pods(self, targets: WarmTargets, interfaces: int, addresses: int) -> None:
        vpc = Vpc(LIMITS)
        settle(vpc, targets, now=0.0, waiting=4)
        run_pods(vpc, range(4), now=0.0)
        settle(vpc, targets, now=0.0)
        assert counts(vpc) == (interfaces, addresses)

    def test_prefixes(self) -> None:
        vpc = Vpc(LIMITS, range_size=16)
        settle(vpc, WarmTargets(prefixes=1), now=0.0)
        assert counts(vpc) == (1, 16)
        run_pods(vpc, range(5), now=0.0)
        settle(vpc, WarmTargets(prefixes=1), now=0.0)
        assert counts(vpc) == (1, 32)

    def test_no_more_than_the_node_may_run(self) -> None:
        few = NodeLimits(interfaces=3, slots=6, pods=4)
        vpc = Vpc(few)
        settle(vpc, WarmTargets(interfaces=3), now=0.0)
        assert counts(vpc) == (1, 4)

    def test_the_most_is_the_proposals_formula(self) -> None:
        assert max_addresses(LIMITS, range_size=1) == 3 * 6 - 3
        assert max_addresses(LIMITS, range_size=16) == 240


class TestSteps:
    def test_who_waits_is_served_by_one_call(self) -> None:
        vpc = Vpc(LIMITS)
        demand = Demand(waiting=4)
        step = decide(vpc.ledger.uses(now=0.0), WarmTargets(ips=1), LIMITS, demand, give_back=ALL)
        assert step == AssignRanges(vpc.interfaces[0].id, 5)

    def test_a_new_interface_comes_with_its_addresses(self) -> None:
        vpc = Vpc(LIMITS)
        settle(vpc, WarmTargets(), now=0.0)
        run_pods(vpc, range(2), now=0.0)
        step = decide(vpc.ledger.uses(now=0.0), WarmTargets(), LIMITS, Demand(waiting=0), give_back=ALL)
        assert step == CreateInterface(5)

    def test_nothing_is_given_back_unless_it_may(self) -> None:
        vpc = Vpc(LIMITS)
        settle(vpc, WarmTargets(ips=5), now=0.0)
        assert settle(vpc, WarmTargets(ips=2), now=0.0, give_back=0) == 0
        step = decide(vpc.ledger.uses(now=0.0), WarmTargets(ips=2), LIMITS, Demand(waiting=0), give_back=ALL)
        assert isinstance(step, UnassignRanges)
        assert len(step.ranges) == 3

    def test_an_interface_goes_when_its_last_address_has_cooled_down(self) -> None:
        vpc = Vpc(LIMITS)
        settle(vpc, WarmTargets(), now=0.0, waiting=6)
        run_pods(vpc, range(6), now=0.0)
        settle(vpc, WarmTargets(), now=0.0)
        assert counts(vpc) == (3, 15)
        for number in range(6):
            vpc.ledger.release(key(number), now=10.0)
        assert settle(vpc, WarmTargets(), now=10.0 + COOLDOWN - 1) == 0, "nine are free, five are wanted"
        step = decide(vpc.ledger.uses(now=10.0 + COOLDOWN), WarmTargets(), LIMITS, Demand(waiting=0), give_back=ALL)
        assert isinstance(step, DeleteInterface)
        settle(vpc, WarmTargets(), now=10.0 + COOLDOWN)
        assert counts(vpc, now=10.0 + COOLDOWN) == (1, 5)


class TestObstacles:
    def test_what_is_full_is_passed_over(self) -> None:
        vpc = Vpc(LIMITS)
        settle(vpc, WarmTargets(ips=6), now=0.0)
        first, second = vpc.ledger.uses(now=0.0)
        run_pods(vpc, range(3), now=0.0)
        uses = vpc.ledger.uses(now=0.0)
        obstacles = Obstacles(full=frozenset({second.interface.id}))
        step = decide(uses, WarmTargets(ips=6), LIMITS, Demand(waiting=0), give_back=0, obstacles=obstacles)
        assert step == CreateInterface(3)
        assert first.interface.slots_used == LIMITS.slots
        nothing = Obstacles(full=frozenset({second.interface.id}), no_creation=True)
        assert decide(uses, WarmTargets(ips=6), LIMITS, Demand(waiting=0), give_back=0, obstacles=nothing) is None

    def test_interfaces_that_do_not_count_take_a_place(self) -> None:
        vpc = Vpc(LIMITS)
        settle(vpc, WarmTargets(ips=5), now=0.0)
        uses = vpc.ledger.uses(now=0.0)
        assert decide(uses, WarmTargets(ips=6), LIMITS.less(1), Demand(waiting=0), give_back=0) == CreateInterface(1)
        assert decide(uses, WarmTargets(ips=6), LIMITS.less(2), Demand(waiting=0), give_back=0) is None

    def test_no_interface_beyond_the_primary_one_is_allowed(self) -> None:
        vpc = Vpc(LIMITS)
        settle(vpc, WarmTargets(ips=9, max_interfaces=1), now=0.0)
        assert counts(vpc) == (1, 5)

    def test_no_more_goes_than_may(self) -> None:
        vpc = Vpc(LIMITS)
        settle(vpc, WarmTargets(ips=5), now=0.0)
        uses = vpc.ledger.uses(now=0.0)
        step = decide(uses, WarmTargets(ips=1), LIMITS, Demand(waiting=0), give_back=2)
        assert isinstance(step, UnassignRanges)
        assert len(step.ranges) == 2


@given(
    targets=st.builds(
        WarmTargets,
        interfaces=st.integers(0, 3),
        ips=COUNTS,
        minimum=COUNTS,
        prefixes=st.none() | st.integers(0, 2),
        max_interfaces=st.none() | st.integers(1, 4),
    ),
    limits=st.builds(NodeLimits, interfaces=st.integers(1, 4), slots=st.integers(2, 8), pods=st.integers(1, 40)),
    range_size=st.sampled_from([1, 16]),
    crowd=st.integers(0, 40),
    leaving=st.integers(0, 40),
)
@settings(max_examples=300, deadline=None)
def test_decisions_come_to_an_end_and_a_steady_load_causes_none(
    targets: WarmTargets, limits: NodeLimits, range_size: int, crowd: int, leaving: int
) -> None:
    vpc = Vpc(limits, range_size=range_size)
    settle(vpc, targets, now=0.0, waiting=min(crowd, limits.pods))
    running = [
        number for number in range(min(crowd, limits.pods)) if vpc.ledger.acquire(key(number), version=4, now=0.0)
    ]
    settle(vpc, targets, now=0.0)
    for number in running[:leaving]:
        vpc.ledger.release(key(number), now=1.0)
    settle(vpc, targets, now=1.0)
    later = 1.0 + COOLDOWN
    settle(vpc, targets, now=later)
    assert settle(vpc, targets, now=later) == 0

    uses = vpc.ledger.uses(now=later)
    there = sum(use.held + use.free for use in uses)
    wanted = wanted_addresses(uses, targets, limits, Demand(waiting=0, range_size=range_size))
    interfaces = min(limits.interfaces, targets.max_interfaces or limits.interfaces)
    reachable = interfaces * (limits.slots - 1) * range_size
    assert there >= min(wanted, reachable)
    if range_size == 1 and targets.counts_interfaces:
        # Whole interfaces go: those that stay are in use, wanted, or the primary one.
        surplus = there - wanted
        assert all(use.held or use.interface.is_primary or use.total > surplus for use in uses)
    elif range_size == 1:
        assert there <= wanted

    # A pod that ends and its successor, again and again, on what is there: nobody is asked for anything.
    calls = vpc.calls
    held = [allocation.key for allocation in vpc.ledger.allocations()]
    for turn, leaver in enumerate(held):
        now = later + turn * (COOLDOWN + 1)
        vpc.ledger.release(leaver, now=now)
        settle(vpc, targets, now=now + COOLDOWN, give_back=0)
        assert vpc.ledger.acquire(leaver, version=4, now=now + COOLDOWN) is not None
        settle(vpc, targets, now=now + COOLDOWN, give_back=0)
    assert vpc.calls == calls
