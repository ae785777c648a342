"""All tests of this folder run under a virtual clock."""

import asyncio

import pytest

from tests.coild.virtual_loop import VirtualPolicy


@pytest.fixture(scope="session")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return VirtualPolicy()
