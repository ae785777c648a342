"""Keeps the pods of this node to their own addresses: the table of `coil.podnet.source_table` is there before the first
pod is connected, and stays.

    prepare ─► the table
    follow ──► what others do to it is undone
    count ───► what it has dropped is a metric, and a line in the log now and then

A kernel that cannot do it stops coild's start: who wants sources verified has no node without it by accident.
"""

import time
from collections.abc import Callable
from typing import Final, Protocol

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from coil.kernel.nft_element import Elements
from coil.netlink.error import BusyError
from coil.nft.netfilter import NftError
from coil.podnet.source_table import SPOOFED
from coild.model.dropped_packets import CountingTable, DroppedPackets, DropReport
from coild.model.watched_table import undo_changes

_NO_ELEMENTS: Final[Elements] = {}
_REPORT: Final = DropReport(
    counter=SPOOFED,
    metric="coil_node_spoofed_packets",
    about="Packets that pods have sent with a source that is not theirs; they were dropped.",
    line="pods send with addresses that are not theirs; dropped",
)


class SourceTable(CountingTable, Protocol):
    """The table in the kernel; `coild.model.watched_table.WatchedTable`."""

    async def sync(self, elements: Elements) -> bool:
        """Make the table; whether it was not so. Idempotent. Raises NftError and BusyError."""
        ...

    async def changed(self) -> None:
        """Wait until something else has changed it."""
        ...


class SourceVerification:
    """One per process. `clock` never jumps."""

    def __init__(
        self,
        table: SourceTable,
        *,
        registry: CollectorRegistry,
        random: Callable[[], float],
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._random = random
        self._log = log
        self._dropped = DroppedPackets(table, _REPORT, registry=registry, log=log, clock=clock)

    async def prepare(self) -> None:
        """Make the table. Raises NftError with what to do about it."""
        try:
            await self._table.sync(_NO_ELEMENTS)
            await self._dropped.begin()
        except NftError as error:
            remedy = "where the kernel has no fib expressions (CONFIG_NFT_FIB_INET), --verify-source=false does without"
            raise NftError(doing="keep pods to their own addresses", reason=f"{error.reason}; {remedy}") from error

    async def follow(self) -> None:
        """Undo what others do to the table, for ever."""
        await undo_changes(self._table.changed, self._restore, random=self._random)

    async def count(self) -> None:
        """Read what was dropped, for ever, and tell of it in the log now and then."""
        await self._dropped.count()

    async def _restore(self) -> bool:
        try:
            different = await self._table.sync(_NO_ELEMENTS)
        except (NftError, BusyError) as error:
            self._log.warning("sources of pods may not be verified", error=str(error))
            return False
        if different:
            self._log.warning("something else had changed the table of pods' sources; it is as it was")
        return True
