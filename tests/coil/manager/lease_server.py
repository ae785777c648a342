"""A Lease behind a network that delays, loses and repeats nothing it was not told to.

The server's rules (resource versions, conflicts) are those of the API server; `lease_contract` holds both
to them. Each call of a `NetworkStore` asks its `Network` for a `Fate`: how long the request travels, what
becomes of it, and how long the answer travels. A request that is under way arrives even if its sender has
given up, is suspended or dead, as on a real network.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from coil.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError, UnavailableError
from coil.kube.lease_lock import Lease, LeaseSpec
from tests.coil.reconcile.virtual_time import Universe, VirtualLoop

T = TypeVar("T")


class LeaseServer:
    """At most one Lease, and the history of its specs with the times of the changes."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._clock = clock
        self._version = 0
        self.lease: Lease | None = None
        self.history: list[tuple[float, LeaseSpec | None]] = []
        self.reads = 0

    def read(self) -> Lease | None:
        self.reads += 1
        return self.lease

    def create(self, lease: Lease) -> Lease:
        if self.lease is not None:
            raise AlreadyExistsError('leases "it" already exists', status=409)
        metadata = msgspec.structs.replace(lease.metadata, name="it", uid=f"uid-{self._version}")
        return self._store(msgspec.structs.replace(lease, metadata=metadata))

    def replace(self, lease: Lease) -> Lease:
        if self.lease is None:
            raise NotFoundError('leases "it" not found', status=404)
        if lease.metadata.resource_version != self.lease.metadata.resource_version:
            raise ConflictError("the object has been modified", status=409)
        if lease == self.lease:
            return self.lease  # the API server stores nothing, and the resource version stays
        return self._store(lease)

    def edit(self, *, annotation: str | None = None, spec: LeaseSpec | None = None) -> None:
        """What somebody with kubectl does, past every election."""
        assert self.lease is not None
        metadata = self.lease.metadata
        if annotation is not None:
            metadata = msgspec.structs.replace(metadata, annotations={"note": annotation})
        self._store(msgspec.structs.replace(self.lease, metadata=metadata, spec=spec or self.lease.spec))

    def delete(self) -> None:
        self.lease = None
        self.history.append((self._clock(), None))

    def _store(self, lease: Lease) -> Lease:
        self._version += 1
        metadata = msgspec.structs.replace(lease.metadata, resource_version=str(self._version))
        self.lease = msgspec.structs.replace(lease, metadata=metadata)
        self.history.append((self._clock(), lease.spec))
        return self.lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of one call. Infinite times: the request, or the answer, is lost.

    `error` is answered instead of what the server says, `applied` tells whether the server acted anyway.
    """

    request: float = 0.01
    answer: float = 0.01
    error: ApiError | None = None
    applied: bool = True


GOOD = Fate()
REQUEST_LOST = Fate(request=math.inf)
ANSWER_LOST = Fate(answer=math.inf)
REFUSED = Fate(error=UnavailableError("503", status=503), applied=False)
BROKEN_AFTERWARDS = Fate(error=UnavailableError("502", status=502))

Network = Callable[[str], Fate]
"""The fate of the next call, by its name: read, create or replace."""


def good_network(_call: str) -> Fate:
    return GOOD


class NetworkStore:
    """The Lease as one process reaches it."""

    def __init__(self, universe: Universe, server: LeaseServer, network: Network = good_network) -> None:
        self._universe = universe
        self._server = server
        self.network = network

    async def read(self) -> Lease | None:
        return await self._call("read", self._server.read)

    async def create(self, lease: Lease, /) -> Lease:
        return await self._call("create", lambda: self._server.create(lease))

    async def replace(self, lease: Lease, /) -> Lease:
        return await self._call("replace", lambda: self._server.replace(lease))

    async def _call(self, name: str, act: Callable[[], T]) -> T:
        fate = self.network(name)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        answer: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            try:
                result = act() if fate.applied else None
                if fate.error is not None:
                    raise fate.error
            except ApiError as error:
                self._send(fate, loop, lambda error=error: _complete(answer, error=error))  # type: ignore[misc]
            else:
                self._send(fate, loop, lambda: _complete(answer, result=result))

        if math.isfinite(fate.request):
            self._universe.at(self._universe.now + fate.request, arrive)
        return await answer

    def _send(self, fate: Fate, loop: VirtualLoop, complete: Callable[[], None]) -> None:
        if math.isfinite(fate.answer):
            self._universe.at(self._universe.now + fate.answer, lambda: loop.deliver(complete))


def _complete(answer: "asyncio.Future[T]", *, result: T | None = None, error: ApiError | None = None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)  # type: ignore[arg-type] # None is what a read of no Lease answers
