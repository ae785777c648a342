"""Credentials that end, change, or cannot be checked: nothing is lost, nothing is done twice, and no restart helps."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import openstack
import pytest
from openstack.connection import Connection

from coil.openstack.client import OpenStackClient
from coil.openstack.error import OpenStackError, UnauthenticatedError
from coil.openstack.neutron import NeutronApi
from integration.neutron.keystone import CLOUD, Keystone
from integration.neutron.neutron_server import NeutronServer
from tests.coil.openstack.neutron_contract import PROJECT

pytestmark = pytest.mark.neutron


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NeutronServer]:
    with NeutronServer.start(tmp_path_factory.mktemp("neutron")) as server:
        yield server


@pytest.fixture
def keystone(server: NeutronServer) -> Iterator[Keystone]:
    with Keystone.start({"network": server.endpoint}) as keystone:
        yield keystone


def connect(clouds: Path) -> Connection:
    loader = openstack.config.OpenStackConfig(config_files=[str(clouds)], load_envvars=False)
    return Connection(config=loader.get_one(cloud=CLOUD))


async def create(neutron: NeutronApi, name: str) -> None:
    await neutron.create_network(name=name, description="", project=PROJECT)


async def test_a_token_that_was_revoked_costs_another_one(keystone: Keystone, tmp_path: Path) -> None:
    with OpenStackClient(partial(connect, keystone.write_clouds(tmp_path / "clouds.yaml"))) as client:
        neutron = NeutronApi(client)
        for number in range(5):
            await create(neutron, f"revoked-{number}")
            keystone.revoke_tokens()
        assert [len(await neutron.networks(name=f"revoked-{number}")) for number in range(5)] == [1] * 5
    assert keystone.issued >= 5


async def test_tokens_that_end_soon(server: NeutronServer, tmp_path: Path) -> None:
    with (
        Keystone.start({"network": server.endpoint}, token_calls=3) as keystone,
        OpenStackClient(partial(connect, keystone.write_clouds(tmp_path / "clouds.yaml")), concurrency=1) as client,
    ):
        neutron = NeutronApi(client)
        await asyncio.gather(*(create(neutron, f"short-{number}") for number in range(10)))
        names = [network.name for network in await neutron.networks() if network.name.startswith("short-")]
        assert sorted(names) == sorted(f"short-{number}" for number in range(10))
        assert keystone.refused >= 3


async def test_a_credential_that_was_rotated_is_read_again(keystone: Keystone, tmp_path: Path) -> None:
    clouds = keystone.write_clouds(tmp_path / "clouds.yaml")
    with OpenStackClient(partial(connect, clouds)) as client:
        neutron = NeutronApi(client)
        await create(neutron, "before")
        keystone.rotate()
        with pytest.raises(UnauthenticatedError):
            await create(neutron, "rotated")
        keystone.write_clouds(clouds)
        await create(neutron, "rotated")
        assert len(await neutron.networks(name="rotated")) == 1


async def test_keystone_away(keystone: Keystone, tmp_path: Path) -> None:
    """A token that is valid is used on; a new one cannot be had, and afterwards it can."""
    with OpenStackClient(partial(connect, keystone.write_clouds(tmp_path / "clouds.yaml"))) as client:
        neutron = NeutronApi(client)
        await create(neutron, "first")
        with keystone.away():
            await create(neutron, "second")
            keystone.revoke_tokens()
            with pytest.raises(OpenStackError):
                await create(neutron, "third")
        await create(neutron, "third")
        assert [len(await neutron.networks(name=name)) for name in ("first", "second", "third")] == [1, 1, 1]
