"""A cache as those see it who read it: its objects, its indexes, its changes, and whether it is complete.

`coil.reconcile.informer.Informer` is the implementation; tests have another one, over an API server in memory.

A cache may lag behind the API server. A reconciler acts on it freely where the API server finds a mistake out (a name
that is taken, a resource version that has moved on), and asks the API server where it would not.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias, TypeVar

from structlog.typing import FilteringBoundLogger

from coil.kube.errors import ApiError, NotFoundError, NotServedError

T = TypeVar("T")

Listener: TypeAlias = Callable[[T | None, T | None], None]

REPORT_SECONDS = 30.0
"""How often a wait for the API server is logged."""


class Cache(Protocol[T]):
    """The last observed state of a collection, by key (`namespace/name`, or `name`)."""

    @property
    def synced(self) -> bool:
        """True once a first list was complete. It stays true through an outage of the API server."""
        ...

    @property
    def last_error(self) -> ApiError | None:
        """Why the last list or watch failed; None if none did since the API server last answered."""
        ...

    async def wait_synced(self, timeout: float) -> None:
        """Return once the cache is synced. Raises TimeoutError, with the last failure, otherwise."""
        ...

    def get(self, key: str) -> T | None: ...

    def items(self) -> list[T]: ...

    def by_index(self, index: str, value: str) -> list[T]:
        """The objects for which the indexer `index` gives `value`. Raises KeyError if there is no such indexer."""
        ...

    def subscribe(self, listener: Listener[T], /) -> None:
        """Call `listener(old, new)` for each change from now on, first for each present object as (None, new).

        `new` is None for a deleted object. Listeners are called synchronously, in the order of their subscription.
        """
        ...

    def unsubscribe(self, listener: Listener[T], /) -> None:
        """Undo one `subscribe`. Raises ValueError if `listener` is not subscribed."""
        ...


async def wait_synced(caches: Iterable[Cache[Any]], *, log: FilteringBoundLogger) -> None:
    """Return when every cache is synced, however long the API server is unavailable. Their informers must be running.

    Does not yield to the event loop if all of them are. Cancelled, nothing has changed. For a wait that gives up there
    is `Cache.wait_synced`.
    """
    for cache in caches:
        while not cache.synced:
            try:
                await cache.wait_synced(REPORT_SECONDS)
            except TimeoutError as error:
                log.warning("waiting for the API server", error=str(error))


def is_unserved(error: ApiError | None) -> bool:
    """Whether the API server has said that it does not serve the kind."""
    return isinstance(error, NotFoundError | NotServedError)


def describe_unsynced(cache: Cache[Any], *, optional: bool = False) -> str | None:
    """A readiness check: None for a synced cache, otherwise why it is not.

    An optional kind may not be served, because its CRD is not installed: that does not count against the process.
    """
    if cache.synced or (optional and is_unserved(cache.last_error)):
        return None
    return f"not listed yet: {cache.last_error or 'no answer'}"
