"""The moment from which a process may believe its caches: every informer has held a complete list once."""

from collections.abc import Iterable
from typing import Any

from structlog.typing import FilteringBoundLogger

from coil.reconcile.informer import Informer

REPORT_SECONDS = 30.0
"""How often it is said that the API server is still waited for."""


async def wait_synced(informers: Iterable[Informer[Any]], *, log: FilteringBoundLogger) -> None:
    """Return when each informer is synced, however long the API server is away. They must be running.

    Cancelled, nothing has changed. For a wait that gives up there is `Informer.wait_synced`.
    """
    for informer in informers:
        while not informer.synced:
            try:
                await informer.wait_synced(REPORT_SECONDS)
            except TimeoutError as error:
                log.warning("waiting for the API server", why=str(error))
