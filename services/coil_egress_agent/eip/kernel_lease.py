"""The kernel's own half of the fence: set elements that time out unless each acknowledged renewal puts them in anew.

When this process dies, hangs, or is cut off, nothing has to run for the node to fall silent: answers to ARP and
neighbour discovery for its EIPs, and the forwarding of what comes through the tunnel, end with the last renewal's time.

Invariant: the fuse is put in only for the term whose addresses the kernel holds (`held_for`), never for one that is
older, nor for what a predecessor of this process has left.
"""

import asyncio
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil_egress_agent.eip.kernel import KERNEL_ERRORS, Tables, bounded, sentence
from coil_egress_agent.eip.lease_renewer import LeaseRenewer
from coil_egress_agent.eip.metric import NodeMetrics, Operation

SHORTEST: Final = 0.02
"""Seconds; less is not worth a call, and would be over before it is done."""


class KernelLease:
    """Run `run` in one task; the rest is synchronous. `broken` is called when the kernel refuses: the sets are gone."""

    def __init__(
        self, tables: Tables, renewer: LeaseRenewer, *, metrics: NodeMetrics, log: FilteringBoundLogger
    ) -> None:
        self._tables = tables
        self._renewer = renewer
        self._metrics = metrics
        self._log = log
        self._renewed = asyncio.Event()
        self._held_for: int | None = None
        self._trouble = ""
        self.broken = asyncio.Event()
        """Set when the kernel has refused; whoever mends the tables clears it."""

    def arm(self, term: int | None) -> None:
        """What the kernel holds is of `term`; None: it holds nothing, or nobody knows of which term."""
        self._held_for = term
        self._renewed.set()

    async def take_out(self) -> None:
        """The kernel is to hold nothing any more."""
        self.arm(None)
        try:
            await bounded(self._tables.silence())
        except KERNEL_ERRORS as error:
            # What is there blows by itself, at the latest when the fence is over.
            self._log.warning("the fuse was not taken out", why=sentence(error))

    def renew(self) -> None:
        """A renewal was acknowledged."""
        self._renewed.set()

    async def run(self) -> None:
        """Put the fuse in after each renewal, the last one counting, until cancelled."""
        while True:
            await self._renewed.wait()
            self._renewed.clear()
            remaining = self._renewer.kernel_timeout(self._held_for)
            if remaining < SHORTEST:
                continue
            try:
                with self._metrics.measured(Operation.FUSE):
                    await self._tables.keep_alive(remaining)
                self._trouble = ""
            except KERNEL_ERRORS as error:
                report = self._log.debug if str(error) == self._trouble else self._log.warning
                self._trouble = str(error)
                report("fuse not put in", why=self._trouble)
                self.broken.set()
