"""Octavia itself keeps the contract that the one in memory keeps, with a Neutron for the ports of its VIPs."""

import secrets
from collections.abc import Iterator
from ipaddress import ip_network

import pytest

from coil.neutron.resource import SubnetId
from coil.openstack.client import OpenStackClient
from coil.openstack.neutron import NeutronApi
from coil.openstack.octavia import Octavia, OctaviaApi
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.octavia_server import OctaviaServer
from tests.coil.openstack.octavia_contract import PROJECT, OctaviaContract

pytestmark = pytest.mark.neutron


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OctaviaServer]:
    with (
        NeutronServer.start(tmp_path_factory.mktemp("neutron")) as neutron,
        OctaviaServer.start(tmp_path_factory.mktemp("octavia"), neutron, settle=0.0) as octavia,
    ):
        yield octavia


@pytest.fixture
def client(server: OctaviaServer) -> Iterator[OpenStackClient]:
    with OpenStackClient(server.connect) as client:
        yield client


class TestOctavia(OctaviaContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: OctaviaServer) -> Iterator[None]:
        self.server = server
        yield
        server.order("settle")

    @pytest.fixture
    def octavia(self, client: OpenStackClient) -> Octavia:
        return OctaviaApi(client)

    @pytest.fixture
    async def subnet(self, client: OpenStackClient, name: str) -> SubnetId:
        neutron = NeutronApi(client)
        network = await neutron.create_network(name=name, description="", project=PROJECT)
        subnet = await neutron.create_subnet(
            name=name,
            description="",
            project=PROJECT,
            network=network.id,
            cidr=ip_network("10.96.0.0/16"),
            gateway=None,
        )
        return subnet.id

    @pytest.fixture
    def name(self) -> str:
        return f"coil:stage:lb:{secrets.token_hex(4)}"

    def hold(self) -> None:
        """See `OctaviaContract`."""
        self.server.order("hold")

    def settle(self) -> None:
        """See `OctaviaContract`."""
        self.server.settle()
