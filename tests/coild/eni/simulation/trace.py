"""Pods that come and go on a few nodes, the same for every algorithm, and the fewest calls that they need."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from coil.eni.warm_pool import NodeLimits

COOLDOWN = 30.0


@dataclass(frozen=True, slots=True, order=True)
class PodRun:
    """One pod: it asks for an address at `start`, and has it for `seconds`, whenever it gets it."""

    start: float
    number: int
    node: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves:
    """Pods in waves, as of jobs and rolling updates: on each node a number of `sizes` within `spread` seconds, each
    pod for `seconds`, and the next wave after `gaps`.
    """

    nodes: int = 3
    sizes: tuple[int, int] = (6, 25)
    spread: float = 10.0
    seconds: tuple[float, float] = (5.0, 40.0)
    gaps: tuple[float, float] = (50.0, 110.0)

    def draw(self, random: Random, *, pods: int) -> list[PodRun]:
        """So many pods, by their time."""
        runs: list[PodRun] = []
        begun = 0.0
        while len(runs) < pods:
            for node in range(self.nodes):
                for _ in range(min(random.randint(*self.sizes), pods - len(runs))):
                    start = begun + random.uniform(0.0, self.spread)
                    runs.append(PodRun(start, len(runs), node, random.uniform(*self.seconds)))
            begun += random.uniform(*self.gaps)
        return sorted(runs)


def peak_demand(runs: Collection[PodRun]) -> int:
    """The most addresses that are held or cooling down at once, if every pod has its own at once."""
    changes = sorted(change for run in runs for change in _changes(run))
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def fewest_changes(runs: Sequence[PodRun], limits: NodeLimits) -> int:
    """The fewest calls that change something of any schedule that knows the trace and lets no pod wait for EC2.

    On each node, all that is needed at the peak is fetched once, and nothing is given back: what is given back costs
    calls and saves none. Up to the limit of an interface, one call assigns addresses to the primary interface. Each
    further interface is three calls: it is created with its addresses, attached, and told to go with its instance,
    without which it would be left behind. What does not fit in the node's interfaces has to wait for cooldowns.
    """
    each = limits.slots - 1
    calls = 0
    for node in {run.node for run in runs}:
        peak = min(peak_demand([run for run in runs if run.node == node]), limits.interfaces * each)
        calls += 1 + 3 * max(0, -(-(peak - each) // each))
    return calls


def _changes(run: PodRun) -> Iterator[tuple[float, int]]:
    yield run.start, 1
    yield run.start + run.seconds + COOLDOWN, -1
