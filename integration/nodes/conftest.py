"""Two real nodes with Coil on them, as Helm installs it, shared by the session, and rooms for the tests to work in."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from integration.cluster.cluster import Cluster
from integration.cluster.family import SERVICES_IPV4, SERVICES_IPV6, ClusterFamilies
from integration.helm.release import Release, import_image
from integration.image.build import build_image
from integration.nodes.coil_cluster import CoilCluster, Families, Room

VALUES = {
    "eip.clusterCIDR": [str(SERVICES_IPV4), str(SERVICES_IPV6)],
    # The shortest: a controller that was killed is followed by the next one after that time.
    "ipam.extraArgs": ["--lease-duration=5s"],
    "coild.cooling": "1s",
    # Beside other tests, a machine may stand still for longer than the default.
    "eip.lease": "20s",
}


class OpenRoom(Protocol):
    """`CoilCluster.room`; the room is left when the test has ended."""

    def __call__(self, families: Families = Families.DUAL, *, bits: int = 3) -> Room: ...


@pytest.fixture(scope="session")
def coil(cluster: Cluster) -> CoilCluster:
    """As `install` has made it. Each test leaves it so."""
    return install(cluster)


@pytest.fixture(
    scope="session", params=[ClusterFamilies.IPV6_ONLY, ClusterFamilies.IPV6_FIRST], ids=lambda families: families.label
)
def other(request: pytest.FixtureRequest) -> Iterator[CoilCluster]:
    """The same on a cluster of other IP families; it takes minutes."""
    with Cluster.up(nodes=2, families=request.param) as cluster:
        yield install(cluster)


def install(cluster: Cluster) -> CoilCluster:
    """The profile that has every program; all of them and the nodes are ready when it returns."""
    import_image(cluster, build_image())
    coil = CoilCluster(cluster, Release(cluster.plane, VALUES, profiles=["eip-gateway"]))
    coil.release.install()
    coil.release.wait_rolled_out()
    cluster.wait_ready()
    return coil


@pytest.fixture
def open_room(coil: CoilCluster) -> Iterator[OpenRoom]:
    with ExitStack() as rooms:

        def enter(families: Families = Families.DUAL, *, bits: int = 3) -> Room:
            return rooms.enter_context(coil.room(families, bits=bits))

        yield enter
