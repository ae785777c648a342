"""The kernel's own half of the fence: set elements that time out unless each acknowledged renewal refreshes them.

When this process dies, hangs or is cut off, nothing has to run for the node to fall silent: answers to ARP and
neighbour discovery for its EIPs, and the forwarding of what arrives through the tunnel, end with the time of the last
renewal.

Invariant: the timeouts are refreshed only for the term whose addresses the kernel holds, never for an earlier one, nor
for what a predecessor of this process has left (`coil.eip.lease_renewal.LeaseRenewal.kernel_timeout`).
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
    """Run `run` in one task; the rest is synchronous but for `revoke`."""

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
        """Set when the kernel has refused, as the sets are gone; whoever mends the tables clears it."""

    def hold(self, term: int | None) -> None:
        """The addresses in the kernel are those of `term`; None: there are none, or it is unknown of which term."""
        self._held_for = term
        self._renewed.set()

    def renewed(self) -> None:
        """A renewal was acknowledged."""
        self._renewed.set()

    async def revoke(self) -> None:
        """End it in the kernel at once. A refusal is logged: the timeouts run out by themselves, within the fence."""
        self.hold(None)
        try:
            await bounded(self._tables.refresh(lambda: 0.0))
        except KERNEL_ERRORS as error:
            self._log.warning("kernel timeouts not cleared", error=sentence(error))

    async def run(self) -> None:
        """Refresh the timeouts after each renewal, the latest one counting, until cancelled."""
        while True:
            await self._renewed.wait()
            self._renewed.clear()
            if self._remaining() < SHORTEST:
                continue
            try:
                with self._metrics.measured(Operation.REFRESH):
                    await bounded(self._tables.refresh(self._remaining))
                self._trouble = ""
            except KERNEL_ERRORS as error:
                reason = sentence(error)
                report = self._log.debug if reason == self._trouble else self._log.warning
                self._trouble = reason
                report("kernel timeouts not refreshed", error=reason)
                self.broken.set()

    def _remaining(self) -> float:
        # The thread of the tables asks, too; what it reads may change only at the end of a term, to 0.
        return self._renewer.kernel_timeout(self._held_for)
