"""Load balancers and floating IPs for Services, between a real API server, a real Neutron and a real Octavia."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

import pytest

from coil.crd.builtin import NAMESPACES, SERVICES
from coil.crd.names import NEUTRON_FINALIZER
from coil.kube.client import KubeClient
from coil.neutron.identity import Identity, Kind, parse_identity
from coil.openstack.client import OpenStackClient
from coil.openstack.neutron import NeutronApi
from coil.openstack.octavia import OctaviaApi
from integration.apiserver.ipam_world import until
from integration.cluster.control_plane import ControlPlane
from integration.neutron.octavia_server import OctaviaServer
from integration.neutron.raven_world import (
    PUBLIC,
    SERVICE_FLAGS,
    SERVICE_NETWORK,
    RavenWorld,
    cleanup_command,
    clouds_file,
)

pytestmark = [pytest.mark.neutron, pytest.mark.apiserver]

CLEANUP_SECONDS: Final = 600.0


@pytest.fixture
async def world(
    request: pytest.FixtureRequest, plane: ControlPlane, admin: KubeClient, octavia: OctaviaServer, tmp_path: Path
) -> AsyncIterator[RavenWorld]:
    flags = (f"--public-network={PUBLIC}", f"--provider={request.param}")
    with RavenWorld.start(plane, admin, octavia.neutron, tmp_path, *SERVICE_FLAGS, *flags, octavia=octavia) as world:
        yield world


@pytest.fixture
def client(octavia: OctaviaServer) -> Iterator[OpenStackClient]:
    with OpenStackClient(octavia.connect) as client:
        yield client


async def members(api: OctaviaApi, address: str) -> dict[int, set[str]] | None:
    """Where connections to each port of that address go; None without a load balancer that is done."""
    found = [each for each in await api.load_balancers() if each.vip_address == address and not each.pending]
    if not found:
        return None
    ports: dict[int, set[str]] = {}
    for listener in await api.listeners(found[0].id):
        pool = listener.default_pool_id
        present = [] if pool is None else await api.members(pool)
        ports[listener.protocol_port] = {f"{each.address}:{each.protocol_port}" for each in present}
    return ports


async def serves(api: OctaviaApi, address: str, expected: dict[int, set[str]]) -> bool:
    return await members(api, address) == expected


@pytest.mark.parametrize("world", ["amphora", pytest.param("ovn", marks=pytest.mark.slow)], indirect=True)
async def test_a_service_from_its_beginning_to_its_end(
    world: RavenWorld, octavia: OctaviaServer, client: OpenStackClient
) -> None:
    neutron, api = NeutronApi(client), OctaviaApi(client)
    # The Service `kubernetes` has one, too, whose members are the API servers: pods reach these by no other way.
    kubernetes = await world.client.get(SERVICES, "kubernetes", namespace="default")
    await until(
        partial(serves, api, kubernetes.spec.cluster_ip, {443: {f"{world.plane.address}:{world.plane.port}"}}),
        what="the Service kubernetes",
    )
    await world.wait_for_networks()
    before = (octavia.snapshot(), octavia.neutron.snapshot())
    namespace = await world.add_namespace("web")
    service = await world.add_service(namespace, type="LoadBalancer")
    address = service.spec.cluster_ip
    assert ip_address(address) in ip_network(SERVICE_NETWORK)
    await world.put_endpoints(namespace, ["10.1.0.7", "10.1.0.8"])
    await until(partial(serves, api, address, {80: {"10.1.0.7:8080", "10.1.0.8:8080"}}), what="the members")

    balancer = next(each for each in await api.load_balancers() if each.vip_address == address)
    identity = parse_identity(balancer.name)
    assert identity is not None
    assert identity == Identity(identity.cluster, Kind.LOAD_BALANCER_IPV4, service.metadata.uid)

    async def exposed() -> bool:
        bound = await neutron.floating_ips(port=balancer.vip_port_id)
        return [each.floating_ip_address for each in bound] == await world.ingress(namespace) != []

    await until(exposed, what="the floating IP")
    await world.put_endpoints(namespace, [])
    await until(partial(serves, api, address, {80: set()}), what="no members")
    patch = {"spec": {"type": "ClusterIP", "ports": [{"name": "http", "port": 81}]}}
    await world.client.patch(SERVICES, "web", patch, namespace=namespace)
    await until(partial(serves, api, address, {81: set()}), what="another port")

    async def withdrawn() -> bool:
        return await neutron.floating_ips() == [] and await world.ingress(namespace) == []

    await until(withdrawn, what="no floating IP")
    await world.client.delete(SERVICES, "web", namespace=namespace)

    async def gone() -> bool:
        names = {each.metadata.name for each in await world.client.list(SERVICES, namespace=namespace)}
        return not names and octavia.snapshot() == before[0]

    await until(gone, what="nothing is left in Octavia")


@pytest.mark.slow
@pytest.mark.parametrize("world", ["amphora", "ovn"], indirect=True)
async def test_one_that_is_killed_goes_on_and_one_that_is_restarted_writes_nothing(
    world: RavenWorld, octavia: OctaviaServer, client: OpenStackClient
) -> None:
    neutron, api = NeutronApi(client), OctaviaApi(client)
    others = {each.id for each in await neutron.floating_ips()}
    namespace = await world.add_namespace("crash")
    addresses = []
    for number in range(3):
        service = await world.add_service(namespace, f"web-{number}", type="LoadBalancer")
        await world.put_endpoints(namespace, [f"10.1.0.{number + 5}"], service=f"web-{number}")
        addresses.append(service.spec.cluster_ip)
        world.raven.crash()
        world.raven.wait_ready()
    for number, address in enumerate(addresses):
        await until(partial(serves, api, address, {80: {f"10.1.0.{number + 5}:8080"}}), what=f"web-{number}")

    async def exposed() -> bool:
        told = [ip for number in range(3) for ip in await world.ingress(namespace, f"web-{number}")]
        made = [each.floating_ip_address for each in await neutron.floating_ips() if each.id not in others]
        return sorted(told) == sorted(made) and len(told) == 3

    await until(exposed, what="three floating IPs")
    world.wait_idle()
    before = {each.id: each for each in await api.load_balancers()}
    requests = octavia.writes()
    world.raven.crash()
    world.raven.wait_ready()
    world.wait_idle()
    assert {each.id: each for each in await api.load_balancers()} == before
    assert octavia.writes() == requests


@pytest.mark.parametrize("world", ["amphora", pytest.param("ovn", marks=pytest.mark.slow)], indirect=True)
async def test_octavia_in_trouble(world: RavenWorld, octavia: OctaviaServer, client: OpenStackClient) -> None:
    api = OctaviaApi(client)
    namespace = await world.add_namespace("trouble")
    octavia.order("fail")
    service = await world.add_service(namespace)
    await world.put_endpoints(namespace, ["10.1.0.7"])
    await until(partial(world.is_told, namespace, "BalancerRebuilt"), what="one in ERROR is told")
    octavia.order("settle")
    await until(partial(serves, api, service.spec.cluster_ip, {80: {"10.1.0.7:8080"}}), what="it was built anew")


@pytest.mark.parametrize("world", ["amphora"], indirect=True)
async def test_a_cleanup_leaves_nothing_of_the_cluster(
    world: RavenWorld, octavia: OctaviaServer, client: OpenStackClient, tmp_path: Path
) -> None:
    neutron = NeutronApi(client)
    namespace = await world.add_namespace("cleanup")
    await world.add_pod(namespace, "pod", node="node-a")
    await world.add_service(namespace, type="LoadBalancer")
    await world.wait_for_handoffs([(namespace, "pod")])

    async def exposed() -> bool:
        return await world.ingress(namespace) != []

    await until(exposed, what="the floating IP")
    world.raven.process.stop(timeout=60.0)
    command = cleanup_command(world.plane, clouds_file(tmp_path, octavia.neutron, octavia), *SERVICE_FLAGS)
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=CLEANUP_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing of the cluster is left in OpenStack\n")
    found = [*await neutron.networks(), *await neutron.routers(), *await neutron.ports()]
    found += [*await neutron.security_groups(), *await neutron.subnets()]
    assert [each.name for each in found if parse_identity(each.name) is not None] == []
    assert await neutron.floating_ips() == []
    assert set(octavia.snapshot().values()) == {0}
    held = [each.metadata for each in await world.client.list(NAMESPACES)]
    held += [each.metadata for each in await world.client.list(SERVICES)]
    assert [each.name for each in held if NEUTRON_FINALIZER in each.finalizers] == []
    assert await world.ingress(namespace) == []
    assert await world.handoff(namespace, "pod") is None
