"""Which block indices of each pool are taken: what the cache shows, and what is on its way there.

In the flow: the informer of AddressBlocks feeds `observe`; the controller reserves an index, creates the block of
that index, and says how that ended. All methods are synchronous and belong to one thread, so concurrent requests
get different indices without a lock and without asking the API server.

The book saves useless attempts, it is not what keeps blocks apart: that is the API server, where the name of a
block is its index. So it may err for a while, and a reservation whose block the cache never shows (it was
deleted too soon, or never created) is forgotten after `lifetime` seconds.
"""

from collections import ChainMap, Counter
from collections.abc import Callable
from math import inf

from coil.crd.address_block import AddressBlock
from coil.crd.names import PoolName, RequestUid
from coil.ipam.layout import PlannedBlock, PoolLayout, plan_next

_STRANGER = RequestUid("")


class IndexBook:
    """`clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float], *, lifetime: float = 60.0) -> None:
        self._clock = clock
        self._lifetime = lifetime
        # Counted, because a reserved block of another name may have the index of an ordinary one.
        self._shown: dict[PoolName, Counter[int]] = {}
        # Until when each index is taken by which request; infinite while the outcome of a creation is open.
        # Two requests may both have been promised one index by controllers that are no more.
        self._reserved: dict[PoolName, dict[tuple[int, RequestUid], float]] = {}

    def observe(self, old: AddressBlock | None, new: AddressBlock | None) -> None:
        """A block appeared (no `old`), changed, or went (no `new`), as the informer tells it, in order."""
        if old is not None:
            shown = self._shown[old.pool]
            shown[old.index] -= 1
            if shown[old.index] <= 0:
                del shown[old.index]
        if new is not None:
            self._shown.setdefault(new.pool, Counter())[new.index] += 1
            # What was settled has come about. From here on the cache says when the index is free again.
            reserved = self._reserved.get(new.pool, {})
            for index, holder in [key for key, until in reserved.items() if key[0] == new.index and until != inf]:
                del reserved[index, holder]

    def reserve(self, layout: PoolLayout, request: RequestUid) -> PlannedBlock | None:
        """The lowest free index of the pool, from now on taken; None when the pool is exhausted.

        A request that still holds a reservation gets the same index again.
        """
        reserved = self._live(layout.pool)
        own = [index for index, holder in reserved if holder == request and index < layout.size]
        if own:
            planned = layout.block_at(min(own))
        else:
            taken = ChainMap(dict.fromkeys((index for index, _ in reserved), 1), self._shown.get(layout.pool, {}))
            free = plan_next(layout, taken)
            if free is None:
                return None
            planned = free
        self.take(planned, request)
        return planned

    def take(self, planned: PlannedBlock, request: RequestUid) -> None:
        """Reserve that very index, whoever else may have it: the request was promised it earlier."""
        self._reserved.setdefault(planned.pool, {})[planned.index, request] = inf

    def release(self, planned: PlannedBlock, request: RequestUid) -> None:
        """The block was certainly not created: its index is free at once."""
        self._reserved.get(planned.pool, {}).pop((planned.index, request), None)

    def settle(self, planned: PlannedBlock, request: RequestUid) -> None:
        """The block exists, or may: its index stays taken until the cache shows it or time has passed."""
        self.release(planned, request)
        if planned.index not in self._shown.get(planned.pool, Counter()):
            self._reserved.setdefault(planned.pool, {})[planned.index, request] = self._clock() + self._lifetime

    def concede(self, planned: PlannedBlock, request: RequestUid) -> None:
        """The block turned out to be another's: `settle`, but the request no longer holds the index."""
        self.release(planned, request)
        self.settle(planned, _STRANGER)

    def creating(self, pool: PoolName) -> bool:
        """Whether a block of the pool may be under creation at this moment."""
        return inf in self._reserved.get(pool, {}).values()

    def _live(self, pool: PoolName) -> dict[tuple[int, RequestUid], float]:
        """The pool's reservations, after dropping those that have served their time."""
        now = self._clock()
        kept = {key: until for key, until in self._reserved.get(pool, {}).items() if now < until}
        self._reserved[pool] = kept
        return kept
