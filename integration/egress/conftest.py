"""One stage for the session; a failure shows what the programs have logged, which would go with the guest."""

from collections.abc import Generator, Iterator
from os import environ

import pytest

from integration.egress.description import VARIABLE
from integration.egress.pod import RunningPod
from integration.egress.world import EgressUnderTest, World
from integration.vm.feature import missing_features


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """Two nodes with coild and kube-proxy, and a host outside the cluster."""
    assert VARIABLE in environ, "run these tests by `python -m integration.egress`, which has a control plane for them"
    missing = missing_features()
    assert not missing, "\n".join(["this kernel lacks", *missing])
    with World.up() as made:
        yield made


@pytest.fixture(scope="session")
def egress(world: World) -> Iterator[EgressUnderTest]:
    """One with a single router, for tests that leave it as it is."""
    with world.egress() as made:
        yield made


@pytest.fixture(scope="session")
def client(world: World, egress: EgressUnderTest) -> Iterator[RunningPod]:
    """A client of it, on another node than its router, for tests that leave it as it is."""
    [router] = egress.routers()
    [station] = [index for index, station in enumerate(world.stations) if station is not router.station]
    with world.client(egress.name, station=station) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs to the report of a failed test."""
    report = yield
    arguments: dict[str, object] = getattr(item, "funcargs", {})
    if report.failed and isinstance(world := arguments.get("world"), World):
        report.sections.extend(world.logs())
    return report
