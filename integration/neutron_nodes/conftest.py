"""The cluster with Neutron, shared by the folder; a failure shows what its programs have logged."""

from collections.abc import Generator, Iterator

import pytest

from integration.neutron_nodes.world import NeutronNodes


@pytest.fixture(scope="package")
def nodes() -> Iterator[NeutronNodes]:
    with NeutronNodes.up() as nodes:
        yield nodes


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    found = getattr(item, "funcargs", {}).get("nodes")
    if report.failed and report.when == "call" and isinstance(found, NeutronNodes):
        report.sections.extend(found.logs())
    return report
