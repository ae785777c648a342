"""A steady load causes no cycle of creating and freeing, whatever the targets are.

The pods of a node end and are replaced, again and again in the same rhythm. Once the node has seen the rhythm, nothing
is asked of EC2 any more: neither for what cools down between a pod and its successor, nor to give that back.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from coil.eni.surplus import SURPLUS_SECONDS, SurplusWindow
from coil.eni.warm_pool import Demand, NodeLimits, WarmTargets, decide, surplus_addresses
from tests.coil.eni.vpc import COOLDOWN, Vpc, key

STEP = 5.0
"""Seconds between two looks of the loop."""
COUNTS = st.none() | st.integers(0, 12)
TARGETS = st.builds(
    WarmTargets,
    interfaces=st.integers(0, 3),
    ips=COUNTS,
    minimum=COUNTS,
    prefixes=st.none() | st.integers(0, 2),
    max_interfaces=st.none() | st.integers(1, 4),
)
LIMITS = st.builds(NodeLimits, interfaces=st.integers(1, 4), slots=st.integers(2, 8), pods=st.integers(1, 40))


@dataclass
class Loop:
    """The node's loop over the pure decisions. Pods that find no address wait."""

    vpc: Vpc
    targets: WarmTargets
    now: float = 0.0
    waiting: list[int] = field(default_factory=list)
    surplus: SurplusWindow = field(default_factory=SurplusWindow)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self._settle()
            self.now = min(end, self.now + STEP)
        self._settle()

    def begin(self, pod: int) -> None:
        self.waiting.append(pod)
        self._serve()

    def end(self, pod: int) -> None:
        if pod in self.waiting:
            self.waiting.remove(pod)
        self.vpc.ledger.release(key(pod), now=self.now)

    def _serve(self) -> None:
        self.waiting = [
            pod for pod in self.waiting if self.vpc.ledger.acquire(key(pod), version=4, now=self.now) is None
        ]

    def _settle(self) -> None:
        for _ in range(200):
            self._serve()
            uses = self.vpc.ledger.uses(now=self.now)
            demand = Demand(waiting=len(self.waiting), range_size=self.vpc.range_size)
            self.surplus.note(surplus_addresses(uses, self.targets, self.vpc.limits, demand), now=self.now)
            lasting = self.surplus.lasting(now=self.now)
            step = decide(uses, self.targets, self.vpc.limits, demand, give_back=lasting)
            if step is None:
                return
            self.vpc.carry_out(step, now=self.now)
        raise AssertionError("no end of decisions")


@given(
    targets=TARGETS,
    limits=LIMITS,
    range_size=st.sampled_from([1, 16]),
    pods=st.integers(0, 20),
    replaced=st.integers(1, 4),
    period=st.sampled_from([5.0, 20.0, 45.0, 120.0, 300.0, 540.0]),
    pause=st.sampled_from([0.0, 10.0, 60.0]),
)
@settings(max_examples=60, deadline=None)
def test_pods_that_are_replaced_in_a_rhythm(
    targets: WarmTargets, limits: NodeLimits, range_size: int, pods: int, replaced: int, period: float, pause: float
) -> None:
    """Each `period`, some pods end; their successors come after the `pause`."""
    loop = Loop(Vpc(limits, range_size=range_size), targets)
    names = list(range(min(pods, limits.pods)))
    for name in names:
        loop.begin(name)
    loop.run(60.0)
    following = len(names)

    def turn() -> None:
        nonlocal following
        leaving, names[:] = names[:replaced], names[replaced:]
        for name in leaving:
            loop.end(name)
        loop.run(min(pause, period))
        for _ in leaving:
            names.append(following)
            loop.begin(following)
            following += 1
        loop.run(max(0.0, period - pause))

    while loop.now < 2 * SURPLUS_SECONDS + 4 * (COOLDOWN + period):
        turn()
    calls = loop.vpc.calls
    until = loop.now + 3 * SURPLUS_SECONDS
    while loop.now < until:
        turn()
    assert loop.vpc.calls == calls
