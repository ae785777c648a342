"""All tests of this folder run under a virtual clock."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.coild.scene import Coild, World
from tests.coild.virtual_loop import VirtualLoop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


@pytest.fixture
async def coild(world: World) -> AsyncIterator[Coild]:
    """Started, with no block and no pod."""
    coild = Coild(world)
    await coild.start()
    yield coild
    await coild.kill()
