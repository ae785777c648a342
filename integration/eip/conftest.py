"""One stage for the session; a failure shows what the programs have logged."""

from collections.abc import Generator, Iterator
from os import environ

import pytest

from integration.cluster.family import ClusterFamilies
from integration.egress.description import VARIABLE
from integration.eip.control_plane import start_with_controllers
from integration.eip.controllers import Controllers
from integration.eip.description import Description
from integration.eip.families import USUAL
from integration.eip.world import Gateway, World

PATIENT = "--eip-lease=20s"
"""Not the default: beside other tests, a machine may stand still for longer than that."""


@pytest.fixture(scope="session", params=[pytest.param(USUAL, id=pytest.HIDDEN_PARAM)])
def families(request: pytest.FixtureRequest) -> ClusterFamilies:
    """Those of the cluster: the usual ones, or what `in_all_families` says."""
    chosen: ClusterFamilies = request.param
    return chosen


@pytest.fixture(scope="session")
def control(families: ClusterFamilies) -> Iterator[tuple[Description, Controllers | None]]:
    """The control plane; its controllers are out of reach in a guest."""
    if VARIABLE in environ:
        description = Description.read()
        if description.families is not families:
            pytest.skip(f"the control plane outside of the guest is {description.families.label}")
        yield description, None
        return
    with start_with_controllers(families) as started:
        yield started


@pytest.fixture(scope="session")
def stage(control: tuple[Description, Controllers | None]) -> Iterator[World]:
    """Three nodes with agents, and the server."""
    with World.up(control[0], PATIENT) as stage:
        yield stage


@pytest.fixture
def controllers(control: tuple[Description, Controllers | None]) -> Iterator[Controllers]:
    """Two of them, of which one leads."""
    assert control[1] is not None, "the controllers run on another machine"
    with control[1].pair() as pair:
        yield pair


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
        if isinstance(control := arguments.get("control"), tuple) and control[1] is not None:
            report.sections.extend(control[1].logs())
    return report
