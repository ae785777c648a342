"""Neutron itself keeps the contract that the one in memory keeps."""

import secrets
from collections.abc import Iterator

import openstack
import pytest
from openstack.connection import Connection

from coil.neutron.resource import Router
from coil.openstack.client import OpenStackClient
from coil.openstack.error import QuotaError, UnavailableError
from coil.openstack.neutron import Neutron, NeutronApi
from integration.neutron.neutron_server import NeutronServer
from tests.coil.openstack.neutron_contract import HOST, PROJECT, NeutronContract, request

pytestmark = pytest.mark.neutron

PAGE = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NeutronServer]:
    with NeutronServer.start(
        tmp_path_factory.mktemp("neutron"), hosts=[HOST], quotas={"quota_router": 2}, page=PAGE
    ) as server:
        yield server


@pytest.fixture
def neutron(server: NeutronServer) -> Iterator[Neutron]:
    with OpenStackClient(server.connect) as client:
        yield NeutronApi(client)


class TestNeutron(NeutronContract):
    @pytest.fixture
    def name(self) -> str:
        return f"coil:stage:net:{secrets.token_hex(4)}"


async def test_a_quota_is_told_apart(neutron: Neutron) -> None:
    async def create(number: int) -> Router:
        return await neutron.create_router(name=f"r{number}", description="", project=PROJECT, external=None)

    routers = [await create(number) for number in range(2)]
    with pytest.raises(QuotaError, match="router"):
        await create(2)
    for router in routers:
        await neutron.delete_router(router.id)


async def test_lists_are_whole_though_the_server_has_short_pages(neutron: Neutron) -> None:
    names = [f"page-{number}" for number in range(2 * PAGE + 1)]
    for name in names:
        await neutron.create_network(name=name, description="", project=PROJECT)
    assert {network.name for network in await neutron.networks()} >= set(names)


async def test_a_port_is_active_once_it_is_plugged_in(server: NeutronServer, neutron: Neutron) -> None:
    network = await neutron.create_network(name="plugged", description="", project=PROJECT)
    group = await neutron.create_security_group(name="plugged", description="", project=PROJECT)
    port = await neutron.create_port(request(network, group, "plugged"))
    assert not port.active
    server.set_status(port.id, "ACTIVE")
    assert (await neutron.port(port.id)).active


async def test_without_an_answer_nobody_knows() -> None:
    with OpenStackClient(_connect_nowhere) as client, pytest.raises(UnavailableError):
        await NeutronApi(client).extensions()


def _connect_nowhere() -> Connection:
    return openstack.connect(
        load_yaml_config=False,
        load_envvars=False,
        auth_type="none",
        network_endpoint_override="http://127.0.0.1:9",
        api_timeout=2,
    )
