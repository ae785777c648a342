"""A cluster in a VPC without Coil yet, shared by the folder; a failure shows what its programs have logged."""

from collections.abc import Iterator

import pytest

from integration.aws_nodes.last_words import pytest_runtest_makereport  # noqa: F401 - a hook
from integration.aws_nodes.world import AwsNodes


@pytest.fixture(scope="package")
def bare() -> Iterator[AwsNodes]:
    """Each module installs the release that it tests, and uninstalls it."""
    with AwsNodes.up(ipv6=True) as nodes:
        yield nodes
        assert nodes.spoofed() == []
