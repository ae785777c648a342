"""A Neutron for each module, and an API server that modules borrow."""

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from coil.kube.client import KubeClient
from coil.openstack.client import OpenStackClient
from coil.openstack.neutron import NeutronApi
from integration.apiserver.plane_pool import PlanePool
from integration.cluster.control_plane import ControlPlane
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.octavia_server import OctaviaServer
from integration.neutron.raven_world import PUBLIC, RavenWorld


@pytest.fixture(scope="session")
def planes() -> Iterator[PlanePool]:
    with PlanePool() as planes:
        yield planes


@pytest.fixture(scope="module")
def plane(planes: PlanePool) -> Iterator[ControlPlane]:
    """Nothing of other modules is in it."""
    with planes.lend() as plane:
        yield plane


@pytest.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[KubeClient]:
    """The administrator's client of `plane`."""
    async with KubeClient.connect(plane.admin_kubeconfig) as client:
        yield client


@pytest.fixture(scope="module")
def octavia(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OctaviaServer]:
    """With a public network beside the Neutron that it uses, which binds ports on the host node-a."""
    with NeutronServer.start(tmp_path_factory.mktemp("neutron"), hosts=["node-a"]) as neutron:
        neutron.add_public_network(PUBLIC, "192.0.2.0/24")
        with OctaviaServer.start(tmp_path_factory.mktemp("octavia"), neutron) as octavia:
            yield octavia


@pytest.fixture
async def world(
    plane: ControlPlane, admin: KubeClient, neutron: NeutronServer, tmp_path: Path
) -> AsyncIterator[RavenWorld]:
    """coil-raven between `plane` and the module's `neutron`."""
    with RavenWorld.start(plane, admin, neutron, tmp_path) as world:
        yield world


@pytest.fixture
def api(neutron: NeutronServer) -> Iterator[NeutronApi]:
    """A client of the module's `neutron`."""
    with OpenStackClient(neutron.connect) as client:
        yield NeutronApi(client)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what coil-raven and Neutron have logged."""
    report = yield
    world = getattr(item, "funcargs", {}).get("world")
    if report.failed and isinstance(world, RavenWorld):
        for process in (world.raven.process, world.neutron.process):
            report.sections.append((f"the end of the log of {process.name}", process.tail()))
    return report
