"""Ports that wait for pods, in a real Neutron."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from coil.crd.builtin import NAMESPACES, PODS
from coil.kube.client import KubeClient
from coil.neutron.identity import Kind, parse_identity
from coil.neutron.resource import Port, PortId
from coil.openstack.neutron import NeutronApi
from integration.apiserver.ipam_world import until
from integration.cluster.control_plane import ControlPlane
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.raven_world import RavenWorld

pytestmark = [pytest.mark.neutron, pytest.mark.apiserver]

SIZE = 4
NODE = "node-a"


@pytest.fixture(scope="module")
def neutron(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NeutronServer]:
    with NeutronServer.start(tmp_path_factory.mktemp("neutron"), hosts=[NODE]) as server:
        yield server


@pytest.fixture
async def world(
    plane: ControlPlane, admin: KubeClient, neutron: NeutronServer, tmp_path: Path
) -> AsyncIterator[RavenWorld]:
    with RavenWorld.start(plane, admin, neutron, tmp_path, f"--port-pool-size={SIZE}") as world:
        yield world


async def idle_ports(api: NeutronApi) -> dict[PortId, Port]:
    ports = await api.ports(device_owner="compute:kuryr")
    return {port.id: port for port in ports if (who := parse_identity(port.name)) and who.kind is Kind.POOLED_PORT}


async def is_full(api: NeutronApi) -> bool:
    return len(await idle_ports(api)) == SIZE


async def test_a_pod_gets_a_port_that_has_waited(world: RavenWorld, neutron: NeutronServer, api: NeutronApi) -> None:
    await world.wait_for_networks()
    before = neutron.snapshot()
    namespace = await world.add_namespace("pool")
    await world.add_pod(namespace, "first", node=NODE)
    await until(partial(is_full, api), what="ports wait for pods")
    idle = await idle_ports(api)
    assert {(port.host_id, port.device_id, port.security_groups) for port in idle.values()} == {(NODE, "", frozenset())}
    await world.add_pod(namespace, "web", node=NODE)
    await world.wait_for_handoffs([(namespace, "web")])
    handoff = await world.handoff(namespace, "web")
    assert handoff is not None
    assert handoff.port in idle
    port = await api.port(handoff.port)
    pod = await world.client.get(PODS, "web", namespace=namespace)
    assert (port.device_id, port.host_id, len(port.security_groups)) == (pod.metadata.uid, NODE, 1)
    assert {str(address.interface.ip) for address in handoff.addresses} == {each.ip_address for each in port.fixed_ips}

    # Killed and started again, it writes nothing, and goes on with what is there.
    for each in [each for each in await api.ports(device_owner="compute:kuryr") if each.device_id]:
        # One that stays DOWN would be bound again one day.
        neutron.set_status(each.id, "ACTIVE")
    world.wait_idle()
    revisions = neutron.revisions("ports")
    world.raven.crash()
    world.raven.wait_ready()
    world.wait_idle()
    assert neutron.revisions("ports") == revisions

    for name in ("first", "web"):
        await world.delete_pod(namespace, name)
    await world.client.delete(NAMESPACES, namespace)
    world.wait_for(before, what="nothing is left in Neutron")


async def test_killed_at_any_moment_no_two_pods_have_one_port(world: RavenWorld, api: NeutronApi) -> None:
    namespace = await world.add_namespace("crowd")
    pods = [(namespace, f"web-{number}") for number in range(4 * SIZE)]
    for number, (_, name) in enumerate(pods):
        await world.add_pod(namespace, name, node=NODE)
        if number % SIZE == SIZE - 1:
            world.raven.crash()
    world.raven.wait_ready()
    await world.wait_for_handoffs(pods)
    world.wait_idle()
    handoffs = [await world.handoff(*pod) for pod in pods]
    ports = {port.id: port for port in await api.ports(device_owner="compute:kuryr")}
    assert len({handoff.port for handoff in handoffs if handoff is not None}) == len(pods)
    for handoff in handoffs:
        assert handoff is not None
        assert ports[handoff.port].device_id == handoff.pod_uid
