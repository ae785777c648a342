"""Single objects, read from the API server past the caches.

"There is no such object" and "nobody knows" are different answers. Few reads run at a time, and none for long: a burst
of pods that no cache has must not take the event loop, or the API server, from those that need neither.
"""

import asyncio
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

from coil.crd.resource import HasMetadata, Resource
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, NotFoundError

T = TypeVar("T", bound=HasMetadata)

READ_SECONDS = 2.0
"""How long an ADD waits at most for one read, its place in the queue included."""

CONCURRENT_READS = 8
"""Each may need a connection of its own, and beginning one costs the event loop some milliseconds."""


class NoAnswerError(Exception):
    """The API server did not say whether there is such an object, or not in time. The cause is what it said instead."""


class APIReader:
    """Reads single objects from the API server, past the caches. One per process."""

    def __init__(self, client: ApiClient, log: FilteringBoundLogger) -> None:
        self._client = client
        self._log = log
        self._slots = asyncio.Semaphore(CONCURRENT_READS)

    async def get(self, resource: Resource[T], name: str, *, namespace: str, deadline: float) -> T:
        """The object as it is now, by `deadline` (the event loop's clock) or within `READ_SECONDS`.

        Raises NotFoundError if the API server says that there is none, NoAnswerError for anything else.
        """
        left = min(READ_SECONDS, deadline - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(left), self._slots:
                return await self._client.get(resource, name, namespace=namespace)
        except NotFoundError:
            raise
        except (ApiError, TimeoutError, ValueError) as error:
            reason = str(error) or "no answer in time"
            self._log.warning(
                "API server did not return an object", kind=resource.kind, namespace=namespace, name=name, error=reason
            )
            what = f"{resource.kind} {namespace}/{name}"
            raise NoAnswerError(f"the API server did not return {what}: {reason}") from error
