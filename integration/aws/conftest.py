"""An API server with the chart's kinds for those tests that have nodes; a failure shows what these have logged."""

from collections.abc import Generator, Iterator

import pytest

from integration.apiserver.plane_pool import PlanePool
from integration.aws.world import EniWorld
from integration.cluster.control_plane import ControlPlane


@pytest.fixture(scope="session")
def planes() -> Iterator[PlanePool]:
    with PlanePool() as planes:
        yield planes


@pytest.fixture(scope="module")
def plane(planes: PlanePool) -> Iterator[ControlPlane]:
    """Nothing of other modules is in it."""
    with planes.lend() as plane:
        yield plane


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    arguments: dict[str, object] = getattr(item, "funcargs", {})
    found: list[object] = [getattr(each, "world", each) for each in arguments.values()]
    worlds = [each for each in found if isinstance(each, EniWorld)]
    if report.failed and worlds:
        report.sections.extend(worlds[0].logs())
    return report
