"""Looks for routing of others that catches what pods send, and says so; puts nothing right, as it is not ours.

the kernel's events ─► note ─► run ─► EniKernel.find_diversions ─► found ─► coild.eni.node_condition
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from coil.eni.interface import InterfaceId
from coil.eni.node_plan import RULE_CLAIM, TABLES, AttachedInterface
from coil.kernel.link import Link
from coil.kernel.route import RouteTable
from coil.netlink.error import NetlinkError
from coil.netlink.node_watch import EventsLost, NodeEvent, OtherRuleEvent, RouteEvent, RuleEvent

LOOK_SECONDS: Final = 60.0
"""Between two looks that nothing prompts: what is in tables that only others' rules look up is not listened to."""
SETTLE_SECONDS: Final = 1.0
"""Between an event and the look, and so between two looks at least."""


class RoutingReader(Protocol):
    """`coild.eni.node_kernel.NodeKernel`, as far as this goes."""

    async def find_diversions(
        self, interfaces: Collection[AttachedInterface], links: Mapping[InterfaceId, Link]
    ) -> tuple[str, ...]:
        """A sentence for each rule and route of others that catches what pods send. Raises NetlinkError."""
        ...


Interfaces = tuple[Collection[AttachedInterface], Mapping[InterfaceId, Link]]


class DiversionWatch:
    """One per process. `interfaces` are those of the node and the links that they have now; None while nothing is
    known of them.
    """

    def __init__(
        self, kernel: RoutingReader, interfaces: Callable[[], Interfaces | None], *, log: FilteringBoundLogger
    ) -> None:
        self._kernel = kernel
        self._interfaces = interfaces
        self._log = log
        self._due = asyncio.Event()
        self.found: tuple[str, ...] | None = None
        """A sentence for each; None: nobody has looked yet."""

    def note(self, event: NodeEvent) -> None:
        """Something has happened to the node's network."""
        match event:
            case EventsLost() | OtherRuleEvent():
                self._due.set()
            case RuleEvent(rule):
                if not RULE_CLAIM.covers(rule):
                    self._due.set()
            case RouteEvent(table):
                if table == RouteTable.MAIN or table in TABLES:
                    self._due.set()

    def look_soon(self) -> None:
        """The interfaces have changed."""
        self._due.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._due.wait()
            await asyncio.sleep(SETTLE_SECONDS)
            self._due.clear()
            if (known := self._interfaces()) is None:
                continue
            try:
                found = await self._kernel.find_diversions(*known)
            except NetlinkError as error:
                # What was found last stands; the next look is not far.
                self._log.warning("not looked for routing that catches what pods send", error=str(error))
                continue
            if found and found != self.found:
                self._log.warning("routing of others catches what pods send", found=found)
            elif self.found and not found:
                self._log.info("routing of others catches nothing of what pods send any more")
            self.found = found
