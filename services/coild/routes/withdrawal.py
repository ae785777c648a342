"""The routes when coild stops: they stay, unless it was told to withdraw them and the Node is gone.

A coild that is restarted or replaced stops, too, and pods are reached by these routes meanwhile. The API server takes
the pods of a Node that is deleted, coild's own among them, and their blocks may be given to another node: whoever still
believes the machine's routes would send there.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.kube.errors import ApiError, NotFoundError

ASK_SECONDS: Final = 2.0
"""For the API server to answer; a stop has to end in time."""


async def withdraw_if_gone(
    get_node: Callable[[], Awaitable[object]],
    withdraw: Callable[[], Awaitable[object]],
    *,
    log: FilteringBoundLogger,
    seconds: float = ASK_SECONDS,
) -> None:
    """Withdraw if the API server says that there is no such Node. If it does not answer, the routes stay."""
    try:
        async with asyncio.timeout(seconds):
            await get_node()
    except NotFoundError:
        log.info("the routes are withdrawn, as the Node is gone")
        await withdraw()
    except (ApiError, TimeoutError) as error:
        log.warning("the routes stay, as it is not known whether the Node is gone", error=str(error) or "no answer")
