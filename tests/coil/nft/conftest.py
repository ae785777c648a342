"""All tests of this folder run under a virtual clock."""

import asyncio
from collections.abc import Callable

from tests.coild.virtual_loop import VirtualLoop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualLoop}
