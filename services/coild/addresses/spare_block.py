"""How many free addresses are kept for pods to come, and which blocks may be released. Pure. Part of
`coild.addresses.pool_demand`.

A pool is in use while one of its addresses is out, or a pod waits for one. Then `addresses` of it are kept free, not
counting those that are cooling down: with fewer, a block is requested. A pool that is not in use keeps nothing.

A block may go once the pool could have done without it for the whole of the linger time: what is left would have been
enough for the most that were out or cooling down in that time, and the spare. The linger time is much longer than it
takes to get a block, so pods that come and go within it, however many, do not make a block go and come.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from coil.crd.names import PoolName
from coil.ipam.occupancy import Tally

LINGER_PERIODS = 10
"""The linger time, in cooldowns: five minutes, by default."""

SHORTEST_STAY = 1.0
"""Seconds after which a block that is needed is looked at again, at the earliest."""


@dataclass(slots=True)
class _Level:
    """So many addresses were not free, the last time at `until`."""

    used: int
    until: float


@dataclass(slots=True)
class SpareBlock:
    """`addresses` 0: nothing is kept, and blocks go as soon as they have cooled down. `linger` in seconds."""

    addresses: int
    linger: float
    clock: Callable[[], float]
    _levels: dict[PoolName, deque[_Level]] = field(default_factory=dict)
    """The present level is the last; before it those that were higher within the linger time: the first is the peak."""

    def shortfall(self, tally: Tally, *, waiting: int) -> int:
        """How many addresses the pool lacks for its spare; `waiting` pods are about to use it."""
        return max((self.addresses if tally.allocated or waiting else 0) - tally.free, 0)

    def note(self, pool: PoolName, tally: Tally) -> None:
        """Record the pool's counts, whenever they may have changed."""
        if self.addresses == 0:
            return
        if tally.blocks == 0:
            self._levels.pop(pool, None)
            return
        now, levels = self.clock(), self._levels.setdefault(pool, deque())
        used = tally.allocated + tally.cooling
        if levels:
            levels[-1].until = now
        while levels and levels[-1].used <= used:
            levels.pop()
        levels.append(_Level(used, now))
        while len(levels) > 1 and levels[0].until <= now - self.linger:
            levels.popleft()

    def stay(self, pool: PoolName, tally: Tally, *, block_size: int) -> float:
        """For how many seconds an empty block of the pool has to stay at least; 0 if it may go. `tally` was noted."""
        levels = self._levels.get(pool)
        if not levels:
            return 0.0
        peak = levels[0].used
        needed = peak + self.addresses if peak else 0
        if tally.free + levels[-1].used - block_size >= needed:
            return 0.0
        return max(levels[0].until + self.linger - self.clock(), SHORTEST_STAY)
