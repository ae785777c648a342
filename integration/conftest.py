"""Session-wide real components for integration tests: started on first use, gone with the session however it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.cluster.cluster import Cluster
from integration.cluster.control_plane import ControlPlane


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ControlPlane]:
    """etcd and kube-apiserver, shared by the session: use names of your own in it and delete what you make."""
    with ControlPlane.start() as plane:
        yield plane


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes without a CNI plugin, shared by the session; to install one is the tests' part."""
    with Cluster.up(nodes=2) as running:
        yield running
