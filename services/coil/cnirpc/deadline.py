"""When the caller of the call that is being served stops listening: its gRPC deadline.

`coil.cnirpc.server` sets it around each call; a service reads it to answer, with a reason, before that moment. Later
nobody listens any more, and the caller knows only that the time is over.
"""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DEADLINE: ContextVar[float] = ContextVar("deadline of the call", default=math.inf)


def call_deadline() -> float:
    """The moment, by the event loop's clock; infinity outside a call, or for a caller that waits for ever."""
    return _DEADLINE.get()


@contextmanager
def answered_within(seconds: float) -> Iterator[None]:
    """Work inside is for a caller that waits that long from now on."""
    token = _DEADLINE.set(asyncio.get_running_loop().time() + seconds)
    try:
        yield
    finally:
        _DEADLINE.reset(token)
