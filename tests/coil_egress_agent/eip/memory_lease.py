"""One node's Lease in memory: versions, delays, lost answers, and what a controller does to it."""

import asyncio
from collections import deque
from dataclasses import dataclass

import msgspec

from coil.kube.errors import AlreadyExistsError, ConflictError, NotFoundError, UnavailableError
from coil.kube.lease_lock import Lease, LeaseSpec


@dataclass(frozen=True, slots=True)
class Trip:
    """What becomes of a call: `there` and `back` are seconds; with `lost` no answer comes, done or not."""

    there: float = 0.001
    back: float = 0.001
    reaches: bool = True
    answered: bool = True


class MemoryLease:
    """Implements `ResourceLock`. Calls use up `trips` in their order, then `usual`."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.trips: deque[Trip] = deque()
        self.usual = Trip()
        self.calls: list[str] = []
        self.writes: list[tuple[float, Lease]] = []
        self._version = 0

    @property
    def holder(self) -> str:
        return self.lease.spec.holder_identity if self.lease is not None else ""

    @property
    def term(self) -> int:
        return self.lease.spec.lease_transitions if self.lease is not None else 0

    def put(self, lease: Lease) -> Lease:
        self._version += 1
        metadata = msgspec.structs.replace(lease.metadata, resource_version=str(self._version))
        self.lease = msgspec.structs.replace(lease, metadata=metadata)
        return self.lease

    def revoke(self) -> None:
        """As the controller does."""
        assert self.lease is not None
        spec = msgspec.structs.replace(self.lease.spec, holder_identity="")
        self.put(msgspec.structs.replace(self.lease, spec=spec))

    def touch(self) -> None:
        """Somebody writes it without meaning anything."""
        assert self.lease is not None
        self.put(self.lease)

    async def read(self) -> Lease | None:
        self.calls.append("read")
        back = await self._arrive()
        lease = self.lease
        await self._return(back)
        return lease

    async def create(self, lease: Lease, /) -> Lease:
        self.calls.append("create")
        back = await self._arrive()
        if self.lease is not None:
            await self._return(back)
            raise AlreadyExistsError("there is one", status=409)
        written = self._write(lease)
        await self._return(back)
        return written

    async def replace(self, lease: Lease, /) -> Lease:
        self.calls.append("replace")
        back = await self._arrive()
        if self.lease is None:
            await self._return(back)
            raise NotFoundError("gone", status=404)
        if lease.metadata.resource_version != self.lease.metadata.resource_version:
            await self._return(back)
            raise ConflictError("changed", status=409)
        # What changes nothing is not stored, and its version stays.
        written = self.lease if lease == self.lease else self._write(lease)
        await self._return(back)
        return written

    def _write(self, lease: Lease) -> Lease:
        written = self.put(lease)
        self.writes.append((asyncio.get_running_loop().time(), written))
        return written

    async def _arrive(self) -> Trip:
        trip = self.trips.popleft() if self.trips else self.usual
        await asyncio.sleep(trip.there)
        if not trip.reaches:
            await self._return(Trip(back=trip.back, answered=False))
        return trip

    @staticmethod
    async def _return(trip: Trip) -> None:
        await asyncio.sleep(trip.back)
        if not trip.answered:
            raise UnavailableError("connection reset")


def spec_of(lease: Lease | None) -> LeaseSpec:
    assert lease is not None
    return lease.spec
