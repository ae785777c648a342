"""coil-raven between a real API server and a real Neutron, under its own service account."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path

import pytest
from playwright.async_api import expect

from coil.crd.builtin import NAMESPACES, NODES, PODS
from coil.kube.client import KubeClient
from coil.kube.errors import ForbiddenError, InvalidError
from coil.neutron.handoff import ANNOTATION_HOST, ANNOTATION_PORT, ANNOTATION_PROJECT, Handoff
from coil.neutron.identity import Identity, Kind, parse_identity
from coil.neutron.resource import ProjectId, SecurityGroupRule
from coil.openstack.neutron import NeutronApi
from integration.apiserver.inspected_world import curl
from integration.apiserver.ipam_world import until
from integration.apiserver.tenant import Tenant
from integration.browser import PATIENCE, open_browser
from integration.cluster.control_plane import ControlPlane
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.raven_world import RavenWorld
from integration.patience import wait_until

pytestmark = [pytest.mark.neutron, pytest.mark.apiserver]

HOSTS = ("node-a", "node-b")

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def neutron(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NeutronServer]:
    with NeutronServer.start(tmp_path_factory.mktemp("neutron"), hosts=HOSTS) as server:
        yield server


async def test_pods_get_ports_on_their_namespaces_networks_and_all_of_it_goes(
    world: RavenWorld, neutron: NeutronServer, api: NeutronApi
) -> None:
    await world.wait_for_networks()
    before = neutron.snapshot()
    blue, green = await world.add_namespace("blue"), await world.add_namespace("green")
    pods = [(namespace, f"web-{number}") for namespace in (blue, green) for number in range(4)]
    for number, (namespace, name) in enumerate(pods):
        await world.add_pod(namespace, name, node=HOSTS[number % 2])
    await world.wait_for_handoffs(pods)

    networks = set()
    for number, (namespace, name) in enumerate(pods):
        handoff = await world.handoff(namespace, name)
        assert handoff is not None
        port = await api.port(handoff.port)
        pod = await world.client.get(PODS, name, namespace=namespace)
        uid = (await world.client.get(NAMESPACES, namespace)).metadata.uid
        identity = parse_identity(port.name)
        assert identity is not None
        assert identity == Identity(identity.cluster, Kind.PORT, pod.metadata.uid)
        assert port.mac_address == handoff.mac
        assert (port.host_id, port.device_id) == (HOSTS[number % 2], pod.metadata.uid)
        assert [str(address.interface.ip) for address in handoff.addresses] == [ip.ip_address for ip in port.fixed_ips]
        assert [address.interface.network.prefixlen for address in handoff.addresses] == [16, 64]
        assert handoff.addresses[0].interface.ip in ip_network("10.0.0.0/8")
        assert handoff.addresses[0].gateway == handoff.addresses[0].interface.network[1]
        network = await api.network(handoff.network)
        assert (network.name, network.mtu, network.segmentation_id) == (
            Identity(identity.cluster, Kind.NETWORK, uid).name,
            handoff.mtu,
            handoff.segmentation,
        )
        networks.add((namespace, network.id))
    assert len(networks) == 2

    for namespace, name in pods:
        await world.delete_pod(namespace, name)
    for namespace in (blue, green):
        await world.client.delete(NAMESPACES, namespace)
    world.wait_for(before, what="nothing is left in Neutron")
    for namespace in (blue, green):
        # Nobody empties it here: there is no namespace controller.
        await until(partial(world.is_released, namespace), what="the finalizer is removed")


async def test_one_that_is_killed_goes_on_and_one_that_is_restarted_writes_nothing(
    world: RavenWorld, neutron: NeutronServer
) -> None:
    namespace = await world.add_namespace("crash")
    pods = [(namespace, f"web-{number}") for number in range(12)]
    for number, (_, name) in enumerate(pods):
        await world.add_pod(namespace, name, node=HOSTS[0])
        if number % 4 == 3:
            world.raven.crash()
    world.raven.wait_ready()
    await world.wait_for_handoffs(pods)
    ports = neutron.revisions("ports")
    own = [each for each in ports.values() if each[0].startswith("coil:") and ":port:" in each[0]]
    assert len(own) == len({name for name, _ in own}) == 12

    world.wait_idle()
    before = {kind: neutron.revisions(kind) for kind in ("networks", "subnets", "ports", "security-groups", "routers")}
    world.raven.crash()
    world.raven.wait_ready()
    world.wait_idle()
    assert {kind: neutron.revisions(kind) for kind in before} == before


async def test_what_was_deleted_while_it_was_away_is_deleted(world: RavenWorld, neutron: NeutronServer) -> None:
    namespace = await world.add_namespace("away")
    await world.add_pod(namespace, "gone", node=HOSTS[0])
    await world.wait_for_handoffs([(namespace, "gone")])
    handoff = await world.handoff(namespace, "gone")
    assert handoff is not None
    world.raven.kill()
    await world.delete_pod(namespace, "gone")
    world.raven.start()
    world.raven.wait_ready()
    wait_until(lambda: handoff.port not in neutron.revisions("ports"), what="the port of a pod that is gone is deleted")


async def test_a_port_that_no_agent_binds_is_told_and_bound_when_the_node_has_its_name(
    world: RavenWorld, api: NeutronApi
) -> None:
    namespace = await world.add_namespace("lost")
    node = f"{namespace}.example.com"
    await world.client.create(NODES, {"metadata": {"name": node}})
    await world.add_pod(namespace, "web", node=node)
    await until(partial(world.is_told, namespace, "PortNotBound"), what="the Event")
    assert await world.handoff(namespace, "web") is None
    await world.client.patch(NODES, node, {"metadata": {"annotations": {ANNOTATION_HOST: HOSTS[0]}}})
    await world.wait_for_handoffs([(namespace, "web")])
    handoff = await world.handoff(namespace, "web")
    assert handoff is not None
    assert (await api.port(handoff.port)).host_id == HOSTS[0]


async def test_a_node_is_told_when_the_port_is_active(world: RavenWorld, neutron: NeutronServer) -> None:
    namespace = await world.add_namespace("active")
    await world.add_pod(namespace, "web", node=HOSTS[0])
    await world.wait_for_handoffs([(namespace, "web")])
    before = await world.handoff(namespace, "web")
    assert before is not None
    assert not before.active
    neutron.set_status(before.port, "ACTIVE")

    async def is_active() -> bool:
        handoff = await world.handoff(namespace, "web")
        return handoff == replace(before, active=True)

    await until(is_active, what="the node is told that the port is plugged in")


async def test_an_administrators_rule_reaches_the_pods(
    plane: ControlPlane, admin: KubeClient, neutron: NeutronServer, api: NeutronApi, tmp_path: Path
) -> None:
    with RavenWorld.start(plane, admin, neutron, tmp_path, "--isolate-namespaces=true") as world:
        namespace = await world.add_namespace("guarded")
        await world.add_pod(namespace, "web", node=HOSTS[0])
        await world.wait_for_handoffs([(namespace, "web")])

        async def rules() -> set[str]:
            found = await world.handoff(namespace, "web")
            assert found is not None
            return set(map(str, found.rules or ()))

        first = await world.handoff(namespace, "web")
        assert first is not None
        own = {f"ingress {each.interface.network}" for each in first.addresses}
        assert await rules() == {"egress 0.0.0.0/0", "egress ::/0", *own}

        uid = (await world.client.get(NAMESPACES, namespace)).metadata.uid
        groups = await api.security_groups()
        [group] = [group for group in groups if (who := parse_identity(group.name)) is not None and who.uid == uid]
        scraper = SecurityGroupRule(
            direction="ingress",
            ethertype="IPv4",
            remote_ip_prefix="192.0.2.0/24",
            protocol="tcp",
            port_range_min=9100,
            port_range_max=9100,
        )
        strange = SecurityGroupRule(direction="ingress", ethertype="IPv4", protocol="vrrp")
        await api.create_security_group_rules(group.id, [scraper, strange], project=ProjectId(""))
        added = "ingress 192.0.2.0/24 tcp 9100"

        async def is_there() -> bool:
            return added in await rules()

        await until(is_there, what="the administrator's rule in the annotation")
        assert await rules() == {"egress 0.0.0.0/0", "egress ::/0", *own, added}
        await until(partial(world.is_told, "default", "RulesLeftOut"), what="the rule that nodes cannot enforce")
        world.raven.crash()
        world.wait_idle()
        assert await rules() == {"egress 0.0.0.0/0", "egress ::/0", *own, added}
        (after,) = [each for each in await api.security_groups() if each.id == group.id]
        assert {scraper.allows(), strange.allows()} <= {rule.allows() for rule in after.security_group_rules}


async def test_tenants_name_neither_ports_nor_projects(world: RavenWorld) -> None:
    """The chart's policies, on a real API server. The administrator is not coil-raven either."""
    namespace = await world.add_namespace("tenant")
    await world.add_pod(namespace, "web", node=HOSTS[0])
    await world.wait_for_handoffs([(namespace, "web")])
    stolen = (await world.client.get(PODS, "web", namespace=namespace)).metadata.annotations[ANNOTATION_PORT]

    patch = {"metadata": {"annotations": {ANNOTATION_PORT: stolen.replace("10.", "11.", 1)}}}
    with pytest.raises((ForbiddenError, InvalidError), match="coil-raven's"):
        await world.client.patch(PODS, "web", patch, namespace=namespace)
    with pytest.raises((ForbiddenError, InvalidError), match="coil-raven's"):
        await world.client.patch(
            PODS, "web", {"metadata": {"annotations": {ANNOTATION_PORT: None}}}, namespace=namespace
        )
    with pytest.raises((ForbiddenError, InvalidError), match="coil-raven's"):
        await world.add_pod(namespace, "thief", node=HOSTS[0], annotations={ANNOTATION_PORT: stolen})
    await world.client.patch(PODS, "web", {"metadata": {"annotations": {"other": "fine"}}}, namespace=namespace)

    # Whoever may do everything in the namespace may still not choose the project.
    tenant = Tenant(world.plane, namespace, "cluster-admin")
    path = f"/api/v1/namespaces/{namespace}"
    wait_until(lambda: tenant.request("GET", path)[0] == 200, what="the tenant's role")
    _, document = tenant.request("GET", path)
    document["metadata"]["labels"]["other"] = "fine"
    status, document = tenant.request("PUT", path, document)
    assert status == 200, document
    document["metadata"].setdefault("annotations", {})[ANNOTATION_PROJECT] = "somebodys"
    status, answer = tenant.request("PUT", path, document)
    assert (status, "openstackprojects" in answer["message"]) == (403, True), answer


async def test_people_look_at_what_it_knows(world: RavenWorld) -> None:
    namespace, handoff = await show_pod(world)
    document = json.loads(curl([], world.page))
    (port,) = [each for each in document["ports"] if (each["namespace"], each["pod"]) == (namespace, "web")]
    assert (port["id"], port["mac"], port["state"]) == (handoff.port, handoff.mac, "down")
    assert port["addresses"] == [str(each.interface.ip) for each in handoff.addresses]
    (network,) = [each for each in document["networks"] if each["namespace"] == namespace]
    assert (network["id"], network["segmentationId"]) == (handoff.network, handoff.segmentation)
    assert document["leads"] is True
    assert document["calls"]["count"] > 0
    await world.delete_pod(namespace, "web")


@pytest.mark.slow
async def test_a_search_in_a_browser(world: RavenWorld, tmp_path: Path) -> None:
    namespace, handoff = await show_pod(world)
    await world.add_pod(namespace, "other", node=HOSTS[1])
    await world.wait_for_handoffs([(namespace, "other")])
    async with open_browser(tmp_path, entrance=[]) as browser:
        visit = await browser.open(f"{world.page}?q={handoff.mac}")
        await expect(visit.page.locator("#ports tbody tr")).to_have_count(1)
        await expect(visit.page.locator("#ports tbody tr")).to_contain_text(f"{namespace}/web")
        await visit.page.fill("input", str(handoff.addresses[1].interface.ip))
        await expect(visit.page.locator("#ports tbody tr")).to_have_count(1)
        await expect(visit.page.locator("#networks tbody tr")).to_contain_text(namespace)
        assert visit.errors == []
    for name in ("web", "other"):
        await world.delete_pod(namespace, name)


async def show_pod(world: RavenWorld) -> tuple[str, Handoff]:
    """A pod `web` in a namespace of its own, with its port."""
    namespace = await world.add_namespace("shown")
    await world.add_pod(namespace, "web", node=HOSTS[0])
    await world.wait_for_handoffs([(namespace, "web")])
    handoff = await world.handoff(namespace, "web")
    assert handoff is not None
    return namespace, handoff
