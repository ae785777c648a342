"""A stage whose agents have the default lease."""

from collections.abc import Iterator

import pytest

from integration.eip.controllers import Controllers
from integration.eip.description import Description
from integration.eip.world import World


@pytest.fixture(scope="package")
def stage(control: tuple[Description, Controllers | None]) -> Iterator[World]:
    """Three nodes with agents, and the server."""
    with World.up(control[0]) as stage:
        yield stage
