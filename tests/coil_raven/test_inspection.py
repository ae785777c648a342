"""What can be looked at: all that a leader knows, without a call to OpenStack; of others that they do not lead."""

import asyncio

import pytest

from coil.crd.builtin import NAMESPACES, PODS
from coil.openstack.error import QuotaError
from coil.openstack.recent_calls import RecentCalls
from coil.page import neutron_document as page
from coil.runtime.flag import Endpoint
from coil_raven.description import MOST, describe_raven
from coil_raven.inspection import Sources
from coil_raven.port_pool import QUIET_SECONDS
from tests.coil.kube.memory_api import BIRTH, MemoryApi, MemoryClient
from tests.coil.openstack.memory_neutron import MemoryNeutron
from tests.coil.openstack.memory_octavia import MemoryOctavia
from tests.coil_raven.life import CLUSTER, add_namespace, add_pod
from tests.coil_raven.replica import RavenReplica, parse
from tests.coil_raven.service_life import add_service, put_endpoints


class Scene:
    """A replica, and a visitor of its page."""

    def __init__(self, *flags: str, hosts: set[str] | None = None) -> None:
        self.api = MemoryApi()
        self.neutron = MemoryNeutron(hosts=hosts)
        self.octavia = MemoryOctavia()
        public = self.neutron.add_external("public").id
        client = MemoryClient(self.api)
        self.replica = RavenReplica(client, self.neutron, self.octavia, *flags, public=public)
        self.sources = Sources(
            cluster=CLUSTER,
            caches=self.replica.caches,
            load_balancing=self.replica.load_balancing,
            view=self.replica.view,
            paused=lambda: 12.34,
            calls=RecentCalls(clock=lambda: 0.0, now=lambda: BIRTH),
            events=self.replica.events,
        )

    def visit(self, *, leads: bool = True) -> page.NeutronDocument:
        """What the page shows. Nobody is asked for it."""
        before = (list(self.neutron.calls), list(self.octavia.calls), list(self.replica.client.calls))
        snapshot = self.sources.look(
            self.replica.settings, replica="one", leads=leads, leader="one" if leads else "two", at=BIRTH
        )
        document = describe_raven(snapshot)
        assert (self.neutron.calls, self.octavia.calls, self.replica.client.calls) == before
        return document

    def services(self) -> dict[str, page.ServiceDocument]:
        return {each.name: each for each in self.visit().services or ()}

    def ports(self) -> dict[str | None, page.PortDocument]:
        return {each.pod: each for each in self.visit().ports}


async def test_ports_that_wait_for_pods() -> None:
    scene = Scene("--port-pool-size=2")
    add_namespace(scene.api, "default")
    add_pod(scene.api, "web")
    async with scene.replica.term():
        await scene.replica.until(lambda: annotated(scene.api) == 1)
        await asyncio.sleep(QUIET_SECONDS)
        await scene.replica.until(lambda: scene.visit().port_counts.get("idle") == 2)
        document = scene.visit()
    assert [(each.pod, each.state.value) for each in document.ports] == [
        ("web", "down"),
        (None, "idle"),
        (None, "idle"),
    ]
    assert all(each.host == "node-a" and each.description == "waits for a pod" for each in document.ports[1:])


def annotated(api: MemoryApi) -> int:
    return sum(bool(pod.metadata.annotations) for pod in api.all(PODS))


async def test_networks_and_ports_of_a_leader() -> None:
    scene = Scene(hosts={"node-a"})
    api, replica = scene.api, scene.replica
    add_namespace(api, "default")
    add_pod(api, "web")
    add_pod(api, "lost", node="node-b")
    add_pod(api, "pending", node="")
    add_pod(api, "early", namespace="late")
    add_pod(api, "host", hostNetwork=True)
    async with replica.term():
        await replica.until(lambda: annotated(api) == 1 and "PortNotBound" in replica.told.reasons)
        add_namespace(api, "late")
        scene.neutron.faults.refusals["create network"] = [QuotaError("create network", "OverQuota", "no more")]
        await replica.until(lambda: "NoNetwork" in replica.told.reasons)
        document = scene.visit()
    (port,) = [each for each in await scene.neutron.ports() if each.description == "Pod default/web"]
    (web,) = [each for each in document.ports if each.pod == "web"]
    assert [(each.pod, each.state.value) for each in document.ports] == [
        ("lost", "notBound"),
        ("early", "waiting"),
        ("web", "down"),
    ]
    assert document.port_counts == {"active": 0, "down": 1, "notBound": 1, "waiting": 1, "leaving": 0, "idle": 0}
    assert (web.namespace, web.node, web.host) == ("default", "node-a", "node-a")
    assert web.addresses == tuple(each.ip_address for each in port.fixed_ips)
    assert (web.id, web.mac) == (port.id, port.mac_address)
    late, default = document.networks
    assert (late.namespace, late.state, late.id) == ("late", page.NetworkState.WAITING, None)
    assert (default.namespace, default.state, default.mtu, default.ports) == (
        "default",
        page.NetworkState.READY,
        1450,
        2,
    )
    assert default.segmentation_id is not None
    assert [each.cidr for each in default.subnets] == ["10.0.0.0/16", "fd00::/64"]
    ipv4, ipv6 = document.supernets
    assert (ipv4.network, ipv4.part_length, ipv4.parts, ipv4.taken, ipv4.left) == ("10.0.0.0/10", 16, 64, 1, 63)
    assert (ipv6.parts, ipv6.taken, ipv6.left) == (65536, 1, 65535)
    assert {event.reason for event in document.events} == {"NoNetwork", "PortNotBound"}
    assert document.calls.paused_seconds == 12.3
    assert (document.replica, document.leads, document.leader, document.left_out) == ("one", True, "one", {})


async def test_a_port_that_outlives_its_pod() -> None:
    scene = Scene()
    add_namespace(scene.api, "default")
    add_pod(scene.api, "web")
    async with scene.replica.term():
        await scene.replica.until(lambda: annotated(scene.api) == 1)
        scene.api.patch(PODS, "web", {"status": {"phase": "Succeeded"}}, namespace="default")
        scene.replica.pods.look()
        assert scene.ports()["web"].state is page.PortState.LEAVING
        scene.api.delete(PODS, "web", namespace="default")
        scene.replica.pods.look()
        (port,) = scene.visit().ports
    assert (port.state, port.pod, port.namespace) == (page.PortState.LEAVING, None, None)
    assert port.description == "Pod default/web"


async def test_a_namespace_that_goes() -> None:
    scene = Scene()
    add_namespace(scene.api, "default")
    async with scene.replica.term():
        await scene.replica.until(lambda: scene.visit().networks[:1] != () and scene.visit().networks[0].id is not None)
        scene.api.delete(NAMESPACES, "default")
        scene.replica.namespaces.look()
        assert scene.visit().networks[0].state is page.NetworkState.LEAVING


async def test_load_balancers_of_a_leader() -> None:
    scene = Scene()
    add_namespace(scene.api, "default")
    add_service(scene.api, "web", type="LoadBalancer")
    add_service(scene.api, "headless", clusterIP="None", clusterIPs=["None"])
    put_endpoints(scene.api, ["10.0.0.7", "10.0.0.8"])
    async with scene.replica.term():
        await scene.replica.until(lambda: "web" in scene.services() and bool(scene.services()["web"].load_balancers))
        changing = scene.services()["web"]
        assert changing.state is page.ServiceState.CHANGING
        assert changing.load_balancers[0].provisioning_status == "PENDING_CREATE"
        add_service(scene.api, "new", clusterIP="10.96.0.6", clusterIPs=["10.96.0.6"])
        scene.replica.services.look()
        services = scene.services()
    assert "headless" not in services
    assert services["new"].state is page.ServiceState.WAITING
    (found,) = services["web"].load_balancers
    assert (found.vip, found.provider) == ("10.96.0.5", "amphora")
    (listener,) = found.listeners
    assert (listener.protocol, listener.port, listener.member_count) == ("TCP", 80, 2)
    assert [(each.address, each.port) for each in listener.members] == [("10.0.0.7", 8080), ("10.0.0.8", 8080)]


async def test_without_load_balancers() -> None:
    scene = Scene("--service-cidrs=")
    add_namespace(scene.api, "default")
    async with scene.replica.term():
        await scene.replica.until(lambda: scene.replica.view.term is not None)
        assert scene.visit().services is None


async def test_a_replica_that_does_not_lead_says_so() -> None:
    scene = Scene()
    add_namespace(scene.api, "default")
    add_pod(scene.api, "web")
    scene.replica.look()
    document = scene.visit(leads=False)
    assert (document.leads, document.leader) == (False, "two")
    assert (document.networks, document.ports, document.services, document.supernets) == ((), (), None, ())


async def test_what_a_term_knew_ends_with_it() -> None:
    scene = Scene()
    add_namespace(scene.api, "default")
    add_pod(scene.api, "web")
    async with scene.replica.term():
        await scene.replica.until(lambda: annotated(scene.api) == 1)
        # The lease is lost, and the term is about to end.
        assert scene.visit(leads=False).ports == ()
    assert scene.visit().ports == ()


async def test_long_lists_are_cut_and_say_so() -> None:
    scene = Scene()
    for number in range(MOST + 3):
        add_pod(scene.api, f"pod-{number}", node="node-a")
    async with scene.replica.term():
        await scene.replica.until(lambda: scene.replica.view.term is not None)
        document = scene.visit()
    assert (len(document.ports), document.left_out) == (MOST, {"ports": 3})
    assert document.port_counts["waiting"] == MOST + 3


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], Endpoint("127.0.0.1", 9393)),
        (["--inspect-addr=off"], None),
        (["--inspect-addr=0.0.0.0:80"], Endpoint("0.0.0.0", 80)),
    ],
)
def test_where_it_is(flags: list[str], expected: Endpoint | None) -> None:
    assert parse(*flags).inspect_addr == expected
