"""What others do in Neutron, beside coil-raven and to what it has made; and the longest names."""

from collections.abc import Iterator
from functools import partial

import pytest

from coil.crd.builtin import EVENTS, NAMESPACES, PODS
from coil.neutron.identity import ClusterId, Identity, Kind, parse_identity
from coil.neutron.resource import OWNER_ROUTER_INTERFACES, PortId, ProjectId
from coil.openstack.neutron import NeutronApi, PortRequest
from coil_raven.network_removal import POD_OWNER
from integration.apiserver.ipam_world import until
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.raven_world import RavenWorld

pytestmark = [pytest.mark.neutron, pytest.mark.apiserver]

HOST = "node-a"


@pytest.fixture(scope="module")
def neutron(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NeutronServer]:
    with NeutronServer.start(tmp_path_factory.mktemp("neutron"), hosts=[HOST]) as server:
        yield server


async def ready_pod(world: RavenWorld, api: NeutronApi, namespace: str, name: str) -> PortId:
    await world.add_pod(namespace, name, node=HOST)
    await world.wait_for_handoffs([(namespace, name)])
    handoff = await world.handoff(namespace, name)
    assert handoff is not None
    return handoff.port


async def copy_of(api: NeutronApi, port_id: PortId, *, name: str = "", owner: str = POD_OWNER) -> PortId:
    """Another port with the same network, project and device."""
    port = await api.port(port_id)
    request = PortRequest(
        name=name or port.name,
        description="",
        project=ProjectId(port.project_id),
        network=port.network_id,
        device_id=port.device_id,
        device_owner=owner,
        host="",
        groups=port.security_groups,
    )
    return (await api.create_port(request)).id


@pytest.mark.slow
async def test_a_foreign_port_keeps_its_network_and_another_clusters_objects_stay(
    world: RavenWorld, api: NeutronApi
) -> None:
    other = Identity(ClusterId("other"), Kind.NETWORK, "00000000-0000-4000-8000-000000000001")
    theirs = await api.create_network(name=other.name, description="", project=ProjectId(""))
    namespace = await world.add_namespace("foreign")
    foreign = await copy_of(api, await ready_pod(world, api, namespace, "web"), name="a VM", owner="compute:nova")
    network = (await api.port(foreign)).network_id
    await world.delete_pod(namespace, "web")
    await world.client.delete(NAMESPACES, namespace)
    await until(partial(world.is_told, "default", "NetworkInUse"), what="the Event")
    (event,) = [each for each in await world.client.list(EVENTS) if each.reason == "NetworkInUse"]
    assert event.involved_object.name == namespace
    assert foreign in event.message
    assert "a VM" in event.message
    ports = await api.ports(network=network)
    assert {port.id for port in ports if port.device_owner not in OWNER_ROUTER_INTERFACES} == {foreign}
    # Others come and go meanwhile.
    await ready_pod(world, api, await world.add_namespace("meanwhile"), "web")
    assert not await world.is_released(namespace)
    world.wait_idle()
    assert theirs.id in {each.id for each in await api.networks()}


@pytest.mark.slow
async def test_a_port_that_somebody_deletes_is_replaced_and_a_doubled_one_goes(
    world: RavenWorld, api: NeutronApi
) -> None:
    namespace = await world.add_namespace("changed")
    first = await ready_pod(world, api, namespace, "web")
    doubled = await copy_of(api, await ready_pod(world, api, namespace, "other"))
    await api.delete_port(first)
    await until(partial(world.is_told, namespace, "PortReplaced"), what="the Event")

    async def is_replaced() -> bool:
        handoff = await world.handoff(namespace, "web")
        return handoff is not None and handoff.port != first

    async def is_gone() -> bool:
        return doubled not in {port.id for port in await api.ports(device_owner=POD_OWNER)}

    await until(is_replaced, what="another port")
    await until(is_gone, what="one port for each pod")


@pytest.mark.slow
async def test_long_names(world: RavenWorld, api: NeutronApi) -> None:
    namespace = await world.add_namespace("n" * (62 - len(world.prefix)))
    assert len(namespace) == 63
    name = ".".join(["p" * 63] * 3 + ["p" * 61])
    assert len(name) == 253
    port = await api.port(await ready_pod(world, api, namespace, name))
    identity = parse_identity(port.name)
    assert identity is not None
    assert identity.uid == (await world.client.get(PODS, name, namespace=namespace)).metadata.uid
    assert (port.description or "").startswith(f"Pod {namespace}/pppp")
