"""What every binding does when it cannot plug a port in: it unplugs it again, and says so if that fails as well."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from coild.model.port_error import BindError, PortTypeUnknownError

UNDO_SECONDS: Final = 5.0
"""What undoing a `bind` that failed may take, in addition to its time."""


async def undone_if_failed(bind: Awaitable[None], unbind: Callable[[], Awaitable[None]]) -> None:
    """Wait for `bind`. If it fails or is cancelled, wait for `unbind`, too, which is bounded by `UNDO_SECONDS`.

    Raises what `bind` raised; a BindError is not `undone` if `unbind` has failed.
    """
    try:
        await bind
    except BindError as error:
        try:
            await unbind()
        except (BindError, PortTypeUnknownError) as second:
            raise type(error)(f"{error}; nor could it be undone: {second}", undone=False) from error
        raise
    except asyncio.CancelledError:
        # Whoever has cancelled it unplugs it for certain (`coild.neutron.wiring`).
        with suppress(BindError, PortTypeUnknownError):
            await unbind()
        raise
