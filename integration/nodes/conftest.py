"""Two real nodes with Coil on them, shared by the session, and rooms for the tests to work in."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from integration.cluster.cluster import Cluster
from integration.deployment import install_on_cluster
from integration.nodes.coil_cluster import CoilCluster, Families, Room

LEASE = "--lease-duration=5s"
"""The shortest: a controller that was killed is followed by the next one after that time."""

REST = "--cooling=1s"


class OpenRoom(Protocol):
    """`CoilCluster.room`; the room is left when the test has ended."""

    def __call__(self, families: Families = Families.DUAL, *, bits: int = 3) -> Room: ...


@pytest.fixture(scope="session")
def coil_cluster(cluster: Cluster) -> Iterator[CoilCluster]:
    installation = install_on_cluster(cluster, controller_flags=[LEASE], coild_flags=[REST])
    cluster.wait_ready()
    yield CoilCluster(cluster, installation)
    for service in (installation.controller, *installation.daemons.values()):
        # They had every right that they wanted, and met nothing that they were not made for.
        said = service.process.log.read_text().lower().splitlines()
        assert [line for line in said if "forbidden" in line or '"level": "error"' in line] == []


@pytest.fixture
def coil(coil_cluster: CoilCluster) -> CoilCluster:
    """With all programs running, whatever the test before has done to them."""
    coil_cluster.installation.ensure_running()
    return coil_cluster


@pytest.fixture
def open_room(coil: CoilCluster) -> Iterator[OpenRoom]:
    with ExitStack() as rooms:

        def enter(families: Families = Families.DUAL, *, bits: int = 3) -> Room:
            return rooms.enter_context(coil.room(families, bits=bits))

        yield enter
