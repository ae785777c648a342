"""Which block indices of each pool are taken: what the cache shows, and what is on its way there.

In the flow: the informer of AddressBlocks feeds `observe`; the controller reserves an index, creates the block of
that index, and says how that ended. All methods are synchronous and belong to one thread, so concurrent requests
get different indices without a lock and without asking the API server.

The set saves useless attempts, it is not what keeps blocks apart: that is the API server, where the name of a
block is its index. So it may err for a while, and a reservation whose block the cache never shows (it was
deleted too soon, or never created) is forgotten after `lifetime` seconds.

An index whose addresses are another block's, because somebody has got around admission, is passed over
(`coil.ipam.address_map`) and reported (`passed_over`). So are, without a report, those that the layout withholds, and
as many from one on as `occupied_run` says have addresses of the cluster's own.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterator
from ipaddress import IPv4Network, IPv6Network
from math import inf

from coil.crd.address_block import AddressBlock
from coil.crd.names import BlockName, PoolName, RequestUid
from coil.ipam.address_map import AddressMap
from coil.ipam.layout import PlannedBlock, PoolLayout

_FOREIGN = RequestUid("")
"""In the place of the request, for a block that was made for no request of ours."""


def _ignore(_planned: PlannedBlock, _holder: BlockName) -> None:
    pass


class _ShownIndices:
    """Indices of one pool that the cache shows as taken.

    Nodes come and go seldom: mostly the lower indices are taken without a gap, and a search that began at 0 each time
    would take longer for each block.
    """

    def __init__(self) -> None:
        # Counted, because a reserved block of another name may have the index of an ordinary one.
        self._counts: Counter[int] = Counter()
        self._floor = 0  # every index below is taken

    def __len__(self) -> int:
        return len(self._counts)

    def __iter__(self) -> Iterator[int]:
        return iter(self._counts)

    def __contains__(self, index: object) -> bool:
        return index in self._counts

    def floor(self) -> int:
        """The lowest index that is not taken."""
        while self._floor in self._counts:
            self._floor += 1
        return self._floor

    def add(self, index: int) -> None:
        self._counts[index] += 1

    def remove(self, index: int) -> None:
        self._counts[index] -= 1
        if self._counts[index] <= 0:
            del self._counts[index]
            self._floor = min(self._floor, index)


class IndexSet:
    """`clock` is monotonic, in seconds. `passed_over` hears of each index that is free, but its addresses are not."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        lifetime: float = 60.0,
        passed_over: Callable[[PlannedBlock, BlockName], None] = _ignore,
        occupied_run: Callable[[PlannedBlock], int] = lambda planned: 0,
    ) -> None:
        self._clock = clock
        self._lifetime = lifetime
        self._passed_over = passed_over
        self._occupied_run = occupied_run
        self._addresses = AddressMap()
        self._shown: dict[PoolName, _ShownIndices] = {}
        # Until when each index is taken by which request; infinite while the outcome of a creation is open.
        # Two requests may both have been promised one index by controllers that are no more.
        self._reserved: dict[PoolName, dict[tuple[int, RequestUid], float]] = {}

    def observe(self, old: AddressBlock | None, new: AddressBlock | None) -> None:
        """A block appeared (no `old`), changed, or went (no `new`), as the informer tells it, in order."""
        self._addresses.observe(old, new)
        if old is not None:
            self._shown[old.pool].remove(old.index)
        if new is not None:
            self._shown.setdefault(new.pool, _ShownIndices()).add(new.index)
            # A block that was marked as created has appeared. From here on the cache says when the index is free again.
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
            free = self._lowest_free(layout, {index for index, _ in reserved})
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

    def mark_created(self, planned: PlannedBlock, request: RequestUid) -> None:
        """The block exists, or may: its index stays taken until the cache shows it or time has passed."""
        self.release(planned, request)
        if planned.index not in self._shown.get(planned.pool, ()):
            self._reserved.setdefault(planned.pool, {})[planned.index, request] = self._clock() + self._lifetime

    def mark_foreign(self, planned: PlannedBlock, request: RequestUid) -> None:
        """The block turned out to be another's: `mark_created`, but the request no longer holds the index."""
        self.release(planned, request)
        self.mark_created(planned, _FOREIGN)

    def holder_of(self, network: IPv4Network | IPv6Network) -> BlockName | None:
        """A block, of whatever pool, that has an address of the network."""
        return self._addresses.holder_of(network)

    def used(self, pool: PoolName) -> int:
        """How many indices of the pool the cache shows as taken."""
        return len(self._shown.get(pool, ()))

    def capacity(self, layout: PoolLayout) -> int:
        """How many blocks the pool may have; those that the cache shows count, though they be withheld."""
        return layout.capacity(self._shown.get(layout.pool, ()))

    def creating(self, pool: PoolName) -> bool:
        """Whether a block of the pool may be under creation at this moment."""
        return inf in self._reserved.get(pool, {}).values()

    def _lowest_free(self, layout: PoolLayout, reserved: Container[int]) -> PlannedBlock | None:
        shown = self._shown.setdefault(layout.pool, _ShownIndices())
        index = shown.floor()
        while index < layout.size:
            if index in reserved or index in shown:
                index += 1
                continue
            if (after := layout.withheld_until(index)) is not None:
                index = after
                continue
            planned = layout.block_at(index)
            if run := self._occupied_run(planned):
                index = min(index + run, layout.subnet_end(index))
                continue
            if (holder := self._addresses.holder(planned)) is None:
                return planned
            self._passed_over(planned, holder)
            index += 1
        return None

    def _live(self, pool: PoolName) -> dict[tuple[int, RequestUid], float]:
        """The pool's reservations, after dropping those that have served their time."""
        now = self._clock()
        kept = {key: until for key, until in self._reserved.get(pool, {}).items() if now < until}
        self._reserved[pool] = kept
        return kept
