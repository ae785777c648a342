"""How addresses and interfaces that are too many go back to EC2.

    withdraw in the store ─► leave out of the checkpoint ─► unassign, or detach ─► settled

What is to go back is withdrawn before EC2 is asked, and given to no pod unless EC2 is known to have it still: after a
refusal at once, after a call without an answer when a description can be of no moment before it (`settle`). Until then
nothing more is given back. An interface is detached only while the node is not about to leave (`coild.eni.departure`).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.aws.ec2 import Ec2
from coil.aws.error import DeniedError, NotSentError, ThrottledError
from coil.eni.interface import InterfaceId
from coil.eni.ledger import InUseError
from coil.eni.warm_pool import DeleteInterface, Step, UnassignRanges
from coil.kernel.family import IPNetwork
from coild.eni.call_rests import DETACH, UNASSIGN, CallRests
from coild.eni.departure import Departure
from coild.eni.interface_lifecycle import InterfaceLifecycle
from coild.eni.inventory import Inventory
from coild.eni.lost_answers import LostAnswers
from coild.eni.store import EniStore

LEAVING_SECONDS: Final = 60.0
"""Between two questions whether the node is leaving, once it may be."""


@dataclass(slots=True, kw_only=True)
class GivingBack:
    """One per process, and one call at a time. `checkpoint` writes down what the node has, without what is `withdrawn`;
    `lost` are the calls without an answer, those to fetch something among them. `clock` never jumps.
    """

    ec2: Ec2
    store: EniStore
    inventory: Inventory
    lifecycle: InterfaceLifecycle
    rests: CallRests
    lost: LostAnswers
    departure: Departure
    checkpoint: Callable[[], None]
    clock: Callable[[], float]
    log: FilteringBoundLogger
    detaching: bool = False
    """An interface may just have become one that is attached to nothing."""
    _withdrawn: set[IPNetwork] = field(default_factory=set)
    _kept_until: float = float("-inf")
    """Until then no interface is detached, as the node may be leaving."""
    _kept_because: str | None = None

    async def carry_out(self, step: Step | None) -> bool:
        """Do what was decided, if nothing speaks against it; whether anything was done. Raises Ec2Error."""
        match step:
            case UnassignRanges(interface, ranges) if not self.rests.rests(UNASSIGN):
                # Of one length: addresses and prefixes are two calls, one of which might be carried out alone.
                alike = [each for each in ranges if each.prefixlen == ranges[0].prefixlen]
                return await self._take(interface, alike, whole=False)
            case DeleteInterface(interface, ranges) if not self.rests.rests(DETACH):
                return await self._stays() and await self._take(interface, ranges, whole=True)
        return False

    def settle(self) -> None:
        """EC2 has described the interfaces, and what came of lost calls is known if it can be: what EC2 still has may
        be given again.
        """
        if self._withdrawn and not self.lost.taking:
            left = {network for interface in self.inventory.interfaces() for network in interface.ranges}
            self.store.reinstate(self._withdrawn & left)
            self._withdrawn.clear()

    @property
    def withdrawn(self) -> frozenset[IPNetwork]:
        """What EC2 has been asked to take, or is about to be."""
        return frozenset(self._withdrawn)

    @property
    def next_due(self) -> float | None:
        """In how many seconds it is asked again whether the node is leaving; None if that is not in doubt."""
        left = self._kept_until - self.clock()
        return left if left > 0 else None

    async def _stays(self) -> bool:
        """Whether the node is not about to leave, as far as anybody knows; asked once in `LEAVING_SECONDS` at most."""
        if self.next_due is not None:
            return False
        reason = await self.departure.reason()
        if reason is not None:
            self._kept_until = self.clock() + LEAVING_SECONDS
            if reason != self._kept_because:
                self.log.info("no interface is detached: the node may be leaving", reason=reason)
        self._kept_because = reason
        return reason is None

    async def _take(self, interface: InterfaceId, ranges: Collection[IPNetwork], *, whole: bool) -> bool:
        record = self.inventory.find(interface)
        if record is None or record.attachment is None:
            return False
        try:
            self.store.withdraw(ranges)
        except InUseError:
            return False  # taken by a pod since
        self._withdrawn |= set(ranges)
        self.detaching = whole
        self.checkpoint()
        try:
            if whole:
                await self.lifecycle.detach(record, record.attachment)
            else:
                await self.ec2.unassign(interface, ranges)
        except (ThrottledError, DeniedError, NotSentError):
            self.detaching = False
            self._withdrawn -= set(ranges)
            self.store.reinstate(ranges)
            self.checkpoint()
            raise
        except BaseException:
            # It may have taken place: a description will say so.
            self.lost.to_take(DETACH if whole else UNASSIGN, interface, at=self.clock())
            if whole:
                self.lifecycle.note_unsure()
            raise
        self.detaching = False
        self.rests.succeeded(DETACH if whole else UNASSIGN)
        if not whole:
            self.inventory.unassigned(interface, ranges, now=self.clock())
            self.log.info("addresses given back", interface=interface, ranges=sorted(map(str, ranges)))
        self._withdrawn -= set(ranges)
        return True
