"""The cluster in the VPC with Coil on it, shared by the folder; a failure shows what its programs have logged."""

from collections.abc import Iterator

import pytest

from integration.aws_nodes.last_words import pytest_runtest_makereport  # noqa: F401 - a hook
from integration.aws_nodes.world import AwsNodes


@pytest.fixture(scope="package")
def aws() -> Iterator[AwsNodes]:
    """Installed and ready. At the end no packet was ever sent by an interface that had no right to."""
    with AwsNodes.up() as nodes:
        nodes.install()
        yield nodes
        assert nodes.spoofed() == []
