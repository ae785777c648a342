"""One stage for the session; a failure shows what the programs have logged."""

from collections.abc import Generator, Iterator
from contextlib import ExitStack

import pytest

from integration.eip.control_plane import start_control_plane
from integration.eip.description import Description
from integration.eip.world import Gateway, World


@pytest.fixture(scope="session")
def stage() -> Iterator[World]:
    """Three nodes with agents, and the server."""
    with ExitStack() as stack:
        description = Description.read() or stack.enter_context(start_control_plane())
        yield stack.enter_context(World.up(description))


@pytest.fixture
def world(stage: World) -> World:
    """With every node up, whatever the test before has done to it."""
    stage.restore()
    return stage


@pytest.fixture(scope="session")
def gateway(stage: World) -> Iterator[Gateway]:
    """Of four pairs of addresses on n1 and n2, for tests that leave it as it is."""
    with stage.gateway("n1", "n2", number=4) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs to the report of a failed test."""
    report = yield
    arguments: dict[str, object] = getattr(item, "funcargs", {})
    stage = arguments.get("stage") or arguments.get("world")
    if report.failed and isinstance(stage, World):
        report.sections.extend(stage.logs())
    return report
