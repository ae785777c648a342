"""A failed test shows what the programs of its cluster have logged: a hook for the conftest of a folder."""

from collections.abc import Generator

import pytest

from integration.aws_nodes.workload import Workload
from integration.aws_nodes.world import AwsNodes


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    arguments: dict[str, object] = getattr(item, "funcargs", {})
    nodes = [each.aws if isinstance(each, Workload) else each for each in arguments.values()]
    found = next((each for each in nodes if isinstance(each, AwsNodes)), None)
    if report.failed and found is not None:
        report.sections.extend(found.logs())
    return report
