"""What a table has dropped, as a metric and as a line in the log now and then, however often the table is made anew."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from structlog.typing import FilteringBoundLogger

from coil.netlink.error import BusyError
from coil.nft.netfilter import NftError
from coil.nft.table_sync import CounterValue

READ_SECONDS: Final = 5.0
"""Between two readings of the counter."""
TELL_SECONDS: Final = 300.0
"""Between two lines in the log about dropped packets."""


class CountingTable(Protocol):
    """The table in the kernel; `coild.model.watched_table.WatchedTable`."""

    async def counters(self) -> Mapping[str, CounterValue]:
        """What it has counted so far. Raises NftError and BusyError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DropReport:
    """`counter` is the table's. `metric` is the name of the Prometheus counter and `about` its help; `line` is what the
    log says.
    """

    counter: str
    metric: str
    about: str
    line: str


class DroppedPackets:
    """One per table. `clock` never jumps."""

    def __init__(
        self,
        table: CountingTable,
        report: DropReport,
        *,
        registry: CollectorRegistry,
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._report = report
        self._log = log
        self._clock = clock
        self._dropped = 0
        self._before = 0
        """What a table had counted that was deleted since."""
        self._told_at = float("-inf")
        self._told = 0
        registry.register(self)

    def collect(self) -> list[Metric]:
        """For the registry."""
        report = self._report
        return [CounterMetricFamily(report.metric, report.about, value=self._before + self._dropped)]

    async def begin(self) -> None:
        """Have the log tell of what is dropped from now on only. Raises NftError and BusyError."""
        self._told = self._dropped = (await self._table.counters())[self._report.counter].packets

    async def count(self) -> None:
        """Read what was dropped, for ever, and tell of it in the log now and then."""
        while True:
            await asyncio.sleep(READ_SECONDS)
            try:
                dropped = (await self._table.counters())[self._report.counter].packets
            except (NftError, BusyError, KeyError) as error:
                self._log.debug("dropped packets not counted", error=str(error))
                continue
            if dropped < self._dropped:
                self._before += self._dropped
                self._told = 0
            self._dropped = dropped
            if dropped > self._told and self._clock() - self._told_at >= TELL_SECONDS:
                self._log.warning(self._report.line, packets=dropped - self._told)
                self._told, self._told_at = dropped, self._clock()
