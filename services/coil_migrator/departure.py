"""The wait for something that was asked to go."""

import asyncio
from collections.abc import Awaitable, Callable

from coil.kube.errors import UnavailableError

POLL_SECONDS = 0.5


async def wait_gone(is_gone: Callable[[], Awaitable[bool]], *, timeout: float) -> bool:
    """True as soon as `is_gone` says so, False after `timeout` seconds. Asks at least once.

    An API server that cannot be heard is asked again; other errors are raised.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        try:
            if await is_gone():
                return True
        except UnavailableError:
            pass
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
