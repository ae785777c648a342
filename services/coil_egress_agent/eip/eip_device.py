"""The EIPs that this node has on its device, and what follows from it: announcements and the kernel's timeouts.

Two tasks: the applier's rounds `withdraw` what goes and `bring` what comes; `run` takes everything off when a term
ends, whatever a round is doing.

Invariants:
* Addresses are put on the device only for a term that holds at that moment. A round that wants to put one on after its
  term has ended is turned away.
* The kernel lease is held only for the term whose addresses the kernel has.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.kernel.family import IPAddress
from coil.reconcile.backoff import Backoff
from coil_egress_agent.eip.announcer import Announcer
from coil_egress_agent.eip.kernel import KERNEL_ERRORS, Overlay, bounded, sentence
from coil_egress_agent.eip.kernel_lease import KernelLease
from coil_egress_agent.eip.lease_renewer import LeaseRenewer
from coil_egress_agent.eip.metric import NodeMetrics, Operation

RETRY_BACKOFF: Final = Backoff(base=0.1, cap=2.0)


class EipDevice:
    """`ended` is called after a term's end, when everything has been taken off or could not be."""

    def __init__(
        self,
        overlay: Overlay,
        renewer: LeaseRenewer,
        *,
        kernel_lease: KernelLease,
        announcer: Announcer,
        metrics: NodeMetrics,
        log: FilteringBoundLogger,
        ended: Callable[[], object],
        random: Callable[[], float] = random.random,
    ) -> None:
        self._overlay = overlay
        self._renewer = renewer
        self._kernel_lease = kernel_lease
        self._announcer = announcer
        self._metrics = metrics
        self._log = log
        self._tell_ended = ended
        self._random = random
        self._ended = asyncio.Event()  # a term has
        self._addresses: frozenset[IPAddress] = frozenset()
        self._dirty = True  # nobody knows what is on the device

    @property
    def addresses(self) -> frozenset[IPAddress]:
        """The EIPs that are on the device."""
        return self._addresses

    def note_end(self) -> None:
        """The term has ended."""
        self._announcer.withhold_all()
        self._ended.set()

    async def run(self) -> None:
        """When a term ends, take everything off at once; until cancelled."""
        attempt = 0
        while True:
            await self._ended.wait()
            self._ended.clear()
            if self._renewer.term is not None:
                continue  # it goes on, or a round finds nothing that is for the new one
            self._kernel_lease.hold(None)
            # Two threads: neither waits for the other, nor for the mesh.
            off, out = await asyncio.gather(self._take_off(), self._kernel_lease.revoke(), return_exceptions=True)
            for error in (off, out):
                if isinstance(error, BaseException) and not isinstance(error, KERNEL_ERRORS):
                    raise error
            self._tell_ended()
            if isinstance(off, Exception):
                pause = RETRY_BACKOFF.delay(attempt, self._random)
                attempt += 1
                self._log.error("addresses not withdrawn", error=sentence(off), retry_in=round(pause, 2))
                await asyncio.sleep(pause)
                self._ended.set()
            else:
                attempt = 0

    async def withdraw(self, wanted: frozenset[IPAddress], *, look: bool) -> None:
        """Have none but wanted addresses on the device; with `look`, compare with the kernel in any case. Raises one of
        KERNEL_ERRORS.
        """
        gone = self._addresses - wanted
        self._announcer.withhold(gone)
        if not (gone or look or self._dirty):
            return
        if look:
            await bounded(self._overlay.ensure_eip_device())
        known = not self._dirty
        changes = await self._set(self._addresses & wanted)
        if gone:
            self._log.info("addresses withdrawn", addresses=sorted(map(str, gone)))
        elif changes and known:
            self._metrics.count_repair("addresses")
            self._log.warning("something else had changed the addresses", changes=str(changes))
            self._announcer.announce(self._addresses)

    async def bring(self, wanted: frozenset[IPAddress], term: int) -> bool:
        """Have all that are wanted on the device, and announced. False: the term is over. Raises one of
        KERNEL_ERRORS.
        """
        if self._renewer.term != term:
            return False
        self._kernel_lease.hold(term)
        new = wanted - self._addresses
        if not new:
            return True
        await self._set(wanted)
        if self._renewer.term != term:
            return False
        self._log.info("addresses taken", addresses=sorted(map(str, new)), term=term)
        self._announcer.announce(new)
        return True

    async def _take_off(self) -> None:
        if self._addresses or self._dirty:
            await self._set(frozenset())
            self._log.warning("all addresses withdrawn")

    async def _set(self, addresses: frozenset[IPAddress]) -> object:
        """Returns what had to be changed for it. Nothing else runs between this look at the term and the call's place
        in the overlay's queue: what takes the addresses off when the term ends comes after it.
        """
        if self._renewer.term is None:
            addresses = frozenset()
        self._dirty = True
        with self._metrics.measured(Operation.ADDRESSES):
            changes = await bounded(self._overlay.sync_eips(addresses))
        self._addresses = addresses
        self._dirty = False
        self._metrics.set_addresses(len(addresses))
        return changes
