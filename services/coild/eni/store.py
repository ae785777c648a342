"""The node's addresses as one object: what EC2 and the kernel have, what pods hold, and which pods wait.

    Provisioner ─► update, withdraw, reinstate, shortage ─► EniLedger ◄─ take, release, revoke, adopt ◄─ EniSource
                ◄─ changed, uses, waiting                       └─► EniJournal

All of it is synchronous but the wait of an ADD. What changes here sets `changed`, and whoever acts on it looks at the
whole: nothing calls back. An address that becomes available goes to the pod that has waited longest, in the same step.

What is cooling down is never given, whatever is missing: in a VPC there is always somebody who may be asked for
another address, and if there is none, the pod waits.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from random import SystemRandom
from typing import Any, TypeAlias

from coil.eni.interface import InterfaceId, NetworkInterface
from coil.eni.ledger import Allocation, EniLedger, InterfaceUse
from coil.eni.pod_limit import explain_excess
from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import IPAddress, IPNetwork
from coild.eni.journal import EniJournal
from coild.model.address_source import NONE_ENDED, Ended
from coild.model.attachment import UNNAMED, AddressUnavailableError, PodName

SHORTEST_PAUSE = 0.01
"""Seconds: the rounding of clocks must not wake a pod before an address has cooled down, again and again."""

_RANDOM = SystemRandom()

NOT_KNOWN = "the node's interfaces are not known yet"

RETRY_SECONDS = 60.0
"""For which a pod whose ADD has ended without an address still counts as one that needs it: the kubelet tries again
after ten to fifteen seconds (its pod workers' `backOffPeriod`), and EC2 may take longer than one ADD waits. Otherwise
what was fetched for the pod could be given back between two of its attempts, again and again.
"""


class WaitOutcome(StrEnum):
    """How a pod's wait for an address ended."""

    SERVED = "served"
    TIMED_OUT = "timed_out"
    GIVEN_UP = "given_up"


WaitObserver: TypeAlias = Callable[[float, WaitOutcome], None]
"""Is called with the seconds that a pod had to wait. Must not raise or block."""


_Picture: TypeAlias = tuple[
    frozenset[NetworkInterface], frozenset[InterfaceId], frozenset[IPNetwork], frozenset[IPAddress]
]


def _ignore(seconds: float, outcome: WaitOutcome) -> None:
    pass


@dataclass(eq=False, slots=True)
class _Waiter:
    key: AttachmentKey
    pod: PodName
    answer: asyncio.Future[Allocation] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class EniStore:
    """One per process. `cooldown` in seconds; pods get addresses of one IP `version`. `clock` never jumps.

    `shortage` is why no more addresses can be had now, by the provisioner's knowledge; None while nothing speaks
    against it. `pods_limit` is how many pods the Node may run, None until its object was read; `ip_max` how many
    addresses the node can have for pods at most, None until EC2 has told. `changed` is set with every change, and
    cleared by who acts upon it.
    """

    def __init__(
        self,
        journal: EniJournal,
        *,
        version: int,
        cooldown: float,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = _RANDOM.random,
        observe_wait: WaitObserver = _ignore,
    ) -> None:
        self.journal = journal
        self.version = version
        self.shortage: str | None = None
        self.pods_limit: int | None = None
        self.ip_max: int | None = None
        self.changed = asyncio.Event()
        self._clock = clock
        self._random = random
        self._observe_wait = observe_wait
        self._ledger = EniLedger(cooldown=cooldown)
        self._waiters: dict[_Waiter, None] = {}
        self._unserved: dict[PodName, float] = {}
        """Until when pods are expected again whose last ADD has ended without an address."""
        self._known = False
        self._inherited: set[IPNetwork] = set()
        self._resumed = False
        self._used: set[AttachmentKey] = set()
        """Whose addresses pods may have had: those that were adopted, or asked for once more."""
        self._lost: dict[AttachmentKey, Allocation] = {}
        self._picture: _Picture | None = None

    # --- for the provisioner

    def update(
        self,
        interfaces: Iterable[NetworkInterface],
        *,
        up: Collection[InterfaceId],
        doubted: frozenset[IPNetwork] = frozenset(),
        configured: frozenset[IPAddress] = frozenset(),
        inherited: bool = False,
    ) -> list[Allocation]:
        """Take in what EC2 has for this node now; `up` are the interfaces whose links are there and up.

        Of `doubted` ranges nobody knows whether EC2 has them still: pods keep what they have of them, and no more is
        given. Addresses that are `configured` on the node itself are given to no pod.

        `inherited`: the node may have had the ranges before this process, and those that the journal cannot vouch for
        begin with a cooldown.

        Returns the allocations whose addresses have been found missing now: their pods have lost them.
        """
        picture = frozenset(interfaces), frozenset(up), doubted, configured
        if picture != self._picture:
            self._picture, self._known = picture, True
            self.changed.set()
        updated = self._ledger.update(picture[0], up=picture[1], doubted=doubted, configured=configured)
        lost = {each.key: each for each in updated}
        found = [allocation for key, allocation in lost.items() if key not in self._lost]
        self._lost = lost
        if inherited:
            self._inherit({network for interface in picture[0] for network in interface.ranges})
        self._serve()
        return found

    def withdraw(self, ranges: Collection[IPNetwork]) -> None:
        """Give nothing of these ranges any more, as EC2 is asked to take them.

        Raises `coil.eni.ledger.InUseError` if anything of them is held or cooling down; then nothing has changed.
        """
        self._ledger.withdraw(ranges, now=self._clock())
        self.changed.set()

    def reinstate(self, ranges: Collection[IPNetwork]) -> None:
        """EC2 has refused to take them, and they may be given again. Unknown ones are fine."""
        self._ledger.reinstate(ranges)
        self.changed.set()
        self._serve()

    def uses(self) -> list[InterfaceUse]:
        """The counts of each interface, by device number."""
        return self._ledger.uses(now=self._clock())

    def waiting(self, version: int) -> int:
        """How many pods wait for an address of that IP version."""
        return len(self._waiters) if version == self.version else 0

    def demand(self, version: int) -> int:
        """How many pods need an address of that IP version: those that wait, and those whose ADD has ended without one
        and is about to be repeated.
        """
        if version != self.version:
            return 0
        self._forget_unserved()
        waiting = {waiter.pod for waiter in self._waiters}
        return len(self._waiters) + len(self._unserved.keys() - waiting)

    @property
    def demand_left(self) -> float | None:
        """In how many seconds the next pod is not expected any more; None if none is."""
        self._forget_unserved()
        return min((until - self._clock() for until in self._unserved.values()), default=None)

    def pods(self) -> dict[IPAddress, InterfaceId]:
        """The addresses that are out, and the interface of each; the last one that is known for what was lost."""
        return {allocation.address: allocation.interface for allocation in self._ledger.allocations()}

    @property
    def cooldown_left(self) -> float | None:
        """In how many seconds the next address has cooled down, which is then free; None if none is cooling."""
        now = self._clock()
        ends = self._ledger.cooldowns(now=now).values()
        return min(ends) - now if ends else None

    # --- for the source

    async def take(self, key: AttachmentKey, pod: PodName, *, deadline: float) -> Allocation:
        """An address for the pod, by `deadline` of the event loop's clock. A known key gets what it holds.

        Does not yield to the event loop if an address is free. Raises AddressUnavailableError with the reason.
        Cancelled, it has taken nothing. Never called twice at once for a key.
        """
        if key in self._lost:
            # The runtime is to make the sandbox anew; this one would have an address that is somebody else's.
            raise AddressUnavailableError(f"{self._lost[key].address} was taken from this node in EC2")
        if (not self._waiters or self._ledger.find(key) is not None) and (found := self._give(key, pod)) is not None:
            return found
        loop = asyncio.get_running_loop()
        begun = loop.time()
        outcome = WaitOutcome.GIVEN_UP
        waiter = _Waiter(key, pod)
        self._waiters[waiter] = None
        self.changed.set()
        try:
            while not waiter.answer.done():
                if (left := deadline - loop.time()) <= 0:
                    outcome = WaitOutcome.TIMED_OUT
                    raise AddressUnavailableError(self._explain(loop.time() - begun))
                await self._wait(waiter, left)
                self._serve()
            outcome = WaitOutcome.SERVED
            return waiter.answer.result()
        except asyncio.CancelledError:
            if waiter.answer.done():
                self.revoke(key)
            raise
        finally:
            if waiter in self._waiters:
                del self._waiters[waiter]
                self._expect(pod)
                self.changed.set()
            self._observe_wait(loop.time() - begun, outcome)

    def release(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        """Take an address back, to cool down; an unknown key is fine.

        It cools down from when its attachment has `ended`, by the clock; None: now.
        """
        self._lost.pop(key, None)
        self._used.discard(key)
        now = self._clock()
        freed = now if ended is None else min(ended, now)
        if (allocation := self._ledger.release(key, now=freed)) is not None:
            self.journal.took(allocation, at=freed)
            self.changed.set()
            if freed < now:
                self._serve()  # it may have cooled down by now, and then nothing else wakes a pod that waits

    def revoke(self, key: AttachmentKey) -> None:
        """Take an address back that was taken and never used, or else as `release`; an unknown key is fine."""
        if key in self._used:
            self.release(key)
            return
        self._lost.pop(key, None)
        if (allocation := self._ledger.revoke(key)) is not None:
            self.journal.revoked(allocation)
            self.changed.set()
            self._serve()

    def adopt(self, key: AttachmentKey, address: IPAddress) -> Allocation:
        """Enter what the kernel holds, whatever EC2 says. Raises `coil.eni.ledger.InUseError` on a contradiction."""
        allocation = self._ledger.adopt(key, address)
        self._used.add(key)
        self.changed.set()
        return allocation

    def resume(self, ended: Ended = NONE_ENDED) -> None:
        """Go on where an earlier process stopped, or what a reboot has ended. Once, after all was adopted.

        `ended` is when attachments have ended that nobody has seen end.
        """
        held = {allocation.key: allocation.address for allocation in self._ledger.allocations()}
        self._ledger.resume(self.journal.resume(held, ended))
        self._resumed = True
        found, self._inherited = self._inherited, set()
        self._inherit(found)
        self.changed.set()

    def find(self, key: AttachmentKey) -> Allocation | None:
        """What the key holds."""
        return self._ledger.find(key)

    def held(self) -> list[Allocation]:
        """All addresses that are out, in the order in which they were given or adopted."""
        return self._ledger.allocations()

    def place(self, address: IPAddress) -> tuple[InterfaceId, IPNetwork] | None:
        """The interface of the node that has the address, and in which range; None if none of them has it."""
        return self._ledger.place(address)

    def interface_of(self, address: IPAddress) -> InterfaceId | None:
        """The interface of the node that has the address; of a pod's that none has any more, the last one."""
        if (place := self._ledger.place(address)) is not None:
            return place[0]
        return self.pods().get(address) or None

    def learn_limit(self, status: Mapping[str, Any]) -> None:
        """Learn how many pods the node may run from its Node's `status`; nothing where that is no number."""
        text = str((status.get("allocatable") or {}).get("pods", ""))
        limit = int(text) if text.isascii() and text.isdigit() else None
        if limit is not None and limit != self.pods_limit:
            self.pods_limit = limit
            self.changed.set()

    # --- for people

    def lost(self) -> Mapping[AttachmentKey, Allocation]:
        """What pods hold and EC2 has not for this node."""
        return self._lost

    def cooldowns(self) -> dict[IPAddress, float]:
        """The addresses that are cooling down, and for how many seconds more."""
        now = self._clock()
        return {address: until - now for address, until in self._ledger.cooldowns(now=now).items()}

    @property
    def excess(self) -> str | None:
        """By how much the Node allows more pods than can have addresses; None if it does not, or if that is not known
        yet.
        """
        return explain_excess(pods_limit=self.pods_limit, ip_max=self.ip_max)

    @property
    def obstacle(self) -> str | None:
        """Why a pod that came now would get no address; None if it would, or would soon as far as is known."""
        if not self._known:
            return self.shortage or NOT_KNOWN
        if any(use.up and use.free for use in self.uses()):
            return None
        return self.shortage

    # --- inside

    def _inherit(self, ranges: set[IPNetwork]) -> None:
        found = ranges - self._inherited
        self._inherited |= found
        if not self._resumed:
            return
        now = self._clock()
        cooling = self._ledger.cooldowns(now=now)
        for network in found:
            until = self.journal.cooled_at(network)
            if until is None or until <= now:
                continue
            if network.version == 4:
                self._ledger.resume({address: until for address in network if address not in cooling})
            else:
                # Too many to be listed, and that many that none is met again.
                self._ledger.skip(network, int(self._random() * network.num_addresses))

    def _give(self, key: AttachmentKey, pod: PodName) -> Allocation | None:
        if (known := self._ledger.find(key)) is not None:
            self._used.add(key)
            return known
        allocation = self._ledger.acquire(key, version=self.version, now=self._clock())
        if allocation is not None:
            self._unserved.pop(pod, None)
            self.journal.gave(allocation, pod)
            self.changed.set()
        return allocation

    def _expect(self, pod: PodName) -> None:
        """The pod's ADD is about to be repeated. One without a name could not be recognized then."""
        self._forget_unserved()
        if pod != UNNAMED:
            self._unserved[pod] = self._clock() + RETRY_SECONDS

    def _forget_unserved(self) -> None:
        now = self._clock()
        for pod in [pod for pod, until in self._unserved.items() if until <= now]:
            del self._unserved[pod]

    def _serve(self) -> None:
        """Give to those who wait what is free, in their order."""
        for waiter in list(self._waiters):
            if (allocation := self._give(waiter.key, waiter.pod)) is None:
                return
            del self._waiters[waiter]
            waiter.answer.set_result(allocation)

    async def _wait(self, waiter: _Waiter, seconds: float) -> None:
        """Until the waiter has its address, an address has cooled down, or the time is over."""
        if (cooldown_left := self.cooldown_left) is not None:
            seconds = min(seconds, max(cooldown_left, SHORTEST_PAUSE))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.wait({waiter.answer})

    def _explain(self, waited: float) -> str:
        if not self._known:
            return f"no address within {waited:.0f} s: {self.shortage or NOT_KNOWN}"
        uses = self.uses()
        held, cooling = sum(use.held for use in uses), sum(use.cooling for use in uses)
        counts = f"interfaces: {len(uses)}, addresses held: {held}, cooling down: {cooling}, free: 0"
        reason = self.shortage or "EC2 has given no more yet"
        if self.excess is not None and self.ip_max is not None and held + cooling >= self.ip_max:
            reason = f"{reason}; {self.excess}"
        return f"no address within {waited:.0f} s ({counts}): {reason}"
