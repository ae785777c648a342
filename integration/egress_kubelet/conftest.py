"""One stage for the session; a failure shows what the programs have logged, which would go with the guest."""

from collections.abc import Generator, Iterator
from os import environ

import pytest

from integration.egress.description import VARIABLE
from integration.egress_kubelet.world import Egress, World
from integration.vm.feature import missing_features

_started: list[World] = []


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """The node, Ready, and a host outside the cluster."""
    assert VARIABLE in environ, "run these tests by `python -m integration.egress_kubelet`, which has a control plane"
    missing = missing_features()
    assert not missing, "\n".join(["this kernel lacks", *missing])
    with World.up(_started.append) as made:
        yield made


@pytest.fixture(scope="session")
def egress(world: World) -> Iterator[Egress]:
    """One with a single router, for tests that leave it as it is."""
    with world.egress() as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs to the report of a failed test, or of a stage that did not come up."""
    report = yield
    if report.failed:
        for world in _started:
            report.sections.extend(world.logs())
    return report
