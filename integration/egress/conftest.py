"""One stage for the session; a failure shows what the programs have logged, which would go with the guest."""

from collections.abc import Generator, Iterator
from os import environ
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from integration.egress.description import VARIABLE, Description
from integration.egress.pod import RunningPod
from integration.egress.world import EgressUnderTest, World
from integration.vm.feature import missing_features


class OneStage(LoadScopeScheduling):  # type: ignore[misc]
    """Where two processes run tests, one has all that share the stage; whoever is free takes another folder's modules.

    Marks with `--dist=loadgroup` would do, if pytest-xdist 3.8 could name tests as pytest 9.2 does.
    """

    def _split_scope(self, nodeid: str) -> str:
        folder = __package__.replace(".", "/")
        return folder if nodeid.startswith(f"{folder}/") else nodeid.partition("::")[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a cluster of one family there is nothing to see of the other."""
    if VARIABLE not in environ:
        return
    versions = Description.read().families.value
    foreign = [
        item
        for item in items
        if isinstance(item, pytest.Function)
        and item.path.parent == Path(__file__).parent
        and hasattr(item, "callspec")
        and item.callspec.params.get("version", versions[0]) not in versions
    ]
    if foreign:
        config.hook.pytest_deselected(items=foreign)
        items[:] = [item for item in items if item not in foreign]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return OneStage(config, log)


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
