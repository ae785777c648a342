"""Which faults strike when: drawn from the seed alone, before the run. Pure.

A fault is due after so many operations, so there is progress between two of them and something under way at each. Those
with a duration end by themselves, while others strike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random


class Kind(Enum):
    """What goes wrong, or changes."""

    COILD_KILL = "kill -9 coild"
    COILD_KILL_TWICE = "kill -9 coild, and again in its recovery"
    COILD_STOP = "SIGTERM coild"
    COILD_PAUSE = "coild stands still"
    LEADER_KILL = "kill -9 the leading controller"
    LEADER_STOP = "SIGTERM the leading controller"
    LEADER_PAUSE = "the leading controller stands still for longer than its lease"
    STANDBY_KILL = "kill -9 the standing-by controller"
    API_RESTART = "API server restarted"
    API_KILL = "kill -9 API server"
    COMPACTION = "etcd compacted"
    COMPACTION_RESTART = "etcd compacted, API server restarted"
    OVERLOAD = "API server overloaded: 429"
    PARTITION = "node cut off, packets dropped both ways"
    DEAF = "node cut off, only the answers dropped"
    PARTITION_RESTART = "node cut off, and API server restarted meanwhile"
    NODE_REPLACED = "node drained, deleted and made anew; coild too"
    NODE_DELETED = "node drained, deleted and made anew under a running coild"
    NODE_FLAPPED = "node deleted with its pods, and back at once"
    POOL_SWITCHED = "namespace annotated with another pool"
    POOL_APPENDED = "subnet appended to a pool"


COUNTS: Mapping[Kind, int] = {
    Kind.COILD_KILL: 12,
    Kind.COILD_KILL_TWICE: 3,
    Kind.COILD_STOP: 3,
    Kind.COILD_PAUSE: 2,
    Kind.LEADER_KILL: 3,
    Kind.LEADER_STOP: 2,
    Kind.LEADER_PAUSE: 1,
    Kind.STANDBY_KILL: 2,
    Kind.API_RESTART: 2,
    Kind.API_KILL: 2,
    Kind.COMPACTION: 3,
    Kind.COMPACTION_RESTART: 1,
    Kind.OVERLOAD: 3,
    Kind.PARTITION: 4,
    Kind.DEAF: 3,
    Kind.PARTITION_RESTART: 1,
    Kind.NODE_REPLACED: 1,
    Kind.NODE_DELETED: 1,
    Kind.NODE_FLAPPED: 2,
    Kind.POOL_SWITCHED: 6,
    Kind.POOL_APPENDED: 2,
}
"""In a run of the usual length; a longer one has more, in proportion."""

SECONDS: Mapping[Kind, tuple[float, float]] = {
    Kind.COILD_PAUSE: (0.5, 2.0),
    Kind.LEADER_PAUSE: (6.0, 7.0),
    Kind.OVERLOAD: (1.5, 4.0),
    Kind.PARTITION: (0.5, 8.0),
    Kind.DEAF: (0.5, 8.0),
    Kind.PARTITION_RESTART: (3.0, 8.0),
}
"""How long it lasts, between these. The lease of a controller is five seconds."""

ON_COILD = frozenset({Kind.COILD_KILL, Kind.COILD_KILL_TWICE, Kind.COILD_STOP, Kind.NODE_REPLACED})
"""Those that end a coild."""


KEEPS_BLOCKS_COMING = frozenset(
    {
        Kind.COILD_KILL,
        Kind.COILD_KILL_TWICE,
        Kind.COILD_STOP,
        Kind.STANDBY_KILL,
        Kind.COMPACTION,
        Kind.POOL_SWITCHED,
        Kind.POOL_APPENDED,
    }
)
"""Those in spite of which a node gets blocks, so that no address need be given before it has rested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Due after `after` operations; `delay` and `seconds` are in seconds. `node` is a number, where it is about one."""

    after: int
    kind: Kind
    node: int
    delay: float
    seconds: float

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind.value}{lasts} (node {self.node})"


def draw_faults(rng: Random, *, operations: int, usual: int, nodes: int, survivor_from: int) -> list[Fault]:
    """The faults of a run of so many operations, in their order; `usual` is what `COUNTS` is meant for.

    From the operation `survivor_from` on the coild of the last node lives: what it leaks in its life shall be seen.
    """
    faults: list[Fault] = []
    for kind, usual_count in COUNTS.items():
        count = max(1, round(usual_count * operations / usual))
        # One in each stretch of the run, so that it is never one heap.
        for number in range(count):
            after = int((number + rng.random()) * operations / count * 0.95)
            spared = kind in ON_COILD and after >= survivor_from
            low, high = SECONDS.get(kind, (0.0, 0.0))
            faults.append(
                Fault(
                    after=after,
                    kind=kind,
                    node=rng.randrange(nodes - 1 if spared else nodes),
                    delay=rng.uniform(0, 0.05),
                    seconds=rng.uniform(low, high),
                )
            )
    return sorted(faults, key=lambda fault: fault.after)


def split_rounds(faults: Sequence[Fault], *, operations: int, rounds: int) -> list[list[Fault]]:
    """The faults of each round, all rounds being equally long."""
    length = operations / rounds
    return [[fault for fault in faults if int(fault.after // length) == number] for number in range(rounds)]
