"""Asks the API server for single objects that the caches lack: what an ADD wants to know and no informer has told yet.

Few at a time, and none for long: a burst of pods that nobody has heard of must not take the event loop, nor the API
server, from those that need neither. Whoever gets no answer carries on without; the informers will tell.
"""

import asyncio
from typing import Protocol, TypeVar

from structlog.typing import FilteringBoundLogger

from coil.crd.resource import HasMetadata, Resource
from coil.kube.errors import ApiError, NotFoundError

T = TypeVar("T", bound=HasMetadata)

ASK_SECONDS = 2.0
"""How long an ADD waits at most for one look at what is lacking."""

ASKED_AT_ONCE = 8
"""Each may need a connection of its own, and beginning one costs the event loop some milliseconds."""


class AskedClient(Protocol):
    """The part of `coil.kube.client.KubeClient` that is used here."""

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T: ...


class APIReader:
    """One per process."""

    def __init__(self, client: AskedClient, log: FilteringBoundLogger) -> None:
        self._client = client
        self._log = log
        self._room = asyncio.Semaphore(ASKED_AT_ONCE)

    async def get(self, resource: Resource[T], name: str, *, namespace: str, deadline: float) -> T | None:
        """The object as it is now. None if there is none, or no answer by `deadline` (the event loop's clock)."""
        left = min(ASK_SECONDS, deadline - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(left), self._room:
                return await self._client.get(resource, name, namespace=namespace)
        except NotFoundError:
            return None
        except (ApiError, TimeoutError, ValueError) as error:
            why = str(error) or "no answer in time"
            self._log.warning("not known yet, it follows", kind=resource.kind, namespace=namespace, name=name, why=why)
            return None
