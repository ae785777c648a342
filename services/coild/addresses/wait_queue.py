"""The pods that wait for an address of one pool, first come, first served. Part of `coild.addresses.pool_demand`.

Invariant: an address that was given to a waiter is either taken by one of its callers, or can be told to be nobody's.
"""

import asyncio
from dataclasses import dataclass, field

from coil.ipam.attachment import AttachmentKey
from coil.ipam.node_ledger import Allocation
from coild.model.address_source import AddressUnavailableError, PodName


@dataclass(eq=False, slots=True)
class Waiter:
    """An attachment that waits. Several callers with one key are one waiter: they get one address."""

    key: AttachmentKey
    pod: PodName
    answer: asyncio.Future[Allocation] = field(default_factory=asyncio.Future)
    callers: int = 0
    taken: bool = False

    async def wait(self) -> Allocation:
        """The address, or the reason for having none as AddressUnavailableError. The caller bounds the wait."""
        allocation = await asyncio.shield(self.answer)
        self.taken = True
        return allocation

    @property
    def abandoned(self) -> bool:
        """Whether an address was given that no caller has taken, or will."""
        given = self.answer.done() and not self.answer.cancelled() and self.answer.exception() is None
        return given and not self.taken and self.callers == 0


class WaitQueue:
    """Attachments in the order in which they came."""

    def __init__(self) -> None:
        self._waiters: dict[AttachmentKey, Waiter] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def join(self, key: AttachmentKey, pod: PodName) -> Waiter:
        """Queue up; a key that waits already keeps its place."""
        waiter = self._waiters.setdefault(key, Waiter(key, pod))
        waiter.callers += 1
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """One caller does not wait any longer, whatever became of it."""
        waiter.callers -= 1
        if waiter.callers == 0 and self._waiters.get(waiter.key) is waiter:
            del self._waiters[waiter.key]

    @property
    def first(self) -> Waiter | None:
        return next(iter(self._waiters.values()), None)

    def serve(self, waiter: Waiter, allocation: Allocation) -> None:
        """The waiter has got what it waited for, and stands in the line no more."""
        del self._waiters[waiter.key]
        waiter.answer.set_result(allocation)

    def turn_away(self, reason: str) -> None:
        """The last in the line gets nothing."""
        _, waiter = self._waiters.popitem()
        waiter.answer.set_exception(AddressUnavailableError(reason))
        waiter.answer.exception()  # every caller may have given up: not an exception that nobody retrieved
