"""The way of a packet: client pod, tunnel, router, host outside the cluster, and back."""

import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coil.egress.client_filter import CLIENTS, TABLE, UNSOLICITED
from coil.kernel.family import Family
from integration.dashboard.documented import without_series
from integration.dashboard.exposition import parse_exposition
from integration.egress.capture import IPIP, IPV6, TCP, UDP, Capture, Packet
from integration.egress.conversation import Transfer, ask
from integration.egress.external_host import ADDRESSES, NEIGHBOURS
from integration.egress.pod import RunningPod
from integration.egress.station import Station
from integration.egress.world import EgressUnderTest, World
from integration.netns.forged_packet import impossible_tcp, udp
from integration.netns.netns import call_inside
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

PORT = 5555
TTL = 225
MARK = 4711
"""The port of forged packets."""
LENGTHS = {4: "/32", 6: "/128"}
EVERYWHERE = {4: "0.0.0.0/0", 6: "::/0"}
MEGABYTES = 100

versions = pytest.mark.parametrize("version", [4, 6])


def wrapped(packet: Packet, *, source: str = "", destination: str = "") -> bool:
    """Whether it is a packet of a tunnel with those ends."""
    return packet.port == PORT and source in (packet.source, "") and destination in (packet.destination, "")


def observe(world: World, client: RunningPod, asked: str, *, whom: str) -> tuple[Packet, Packet]:
    """Have the client ask an address of the host, which must see it as `whom`. The first packet of the tunnel at the
    client, each way.
    """
    own = client.addresses[ip_address(asked).version]
    with Capture(client.netns) as wire:
        assert ask(client, world.external, asked) == whom
        there = wire.wait_for(lambda packet: wrapped(packet, source=own), what="from the client")
        back = wire.wait_for(lambda packet: wrapped(packet, destination=own), what="to the client")
    return there, back


def test_services_and_pods_have_addresses_of_the_clusters_families(
    world: World, egress: EgressUnderTest, client: RunningPod
) -> None:
    """In its order: `status.podIP` of a pod and the first address of a Service are of the first family."""
    families = world.description.families.value
    assert tuple(egress.addresses) == families
    for pod in (client, *egress.routers()):
        status = world.api.get(pod.path)["status"]
        assert tuple(ip_address(each["ip"]).version for each in status["podIPs"]) == families
        assert {each["ip"] for each in status["podIPs"]} == set(pod.addresses.values())


@versions
def test_the_host_outside_sees_the_router(
    world: World, egress: EgressUnderTest, client: RunningPod, version: int
) -> None:
    """And the tunnel has the Service's address at the other end, both ways: kube-proxy translates it, and back."""
    [router] = egress.routers()
    own, service, outside = client.addresses[version], egress.addresses[version], ADDRESSES[version]
    with Capture(router.netns) as far_wire:
        there, back = observe(world, client, outside, whom=router.addresses[version])
        arrived = far_wire.wait_for(lambda packet: wrapped(packet, source=own), what="at the router")
    assert (there.destination, there.source_port, there.ttl) == (service, PORT, TTL)
    assert there.inner is not None
    assert (there.inner.source, there.inner.destination) == (own, outside)
    assert (back.source, back.source_port) == (service, PORT)
    assert back.inner is not None
    assert (back.inner.source, back.inner.destination) == (outside, own)
    assert arrived.destination == router.addresses[version]


def send_forged(pod: RunningPod, client: RunningPod, version: int) -> None:
    """What the client's tunnels would take for a packet of a host outside: in UDP, and as it is."""
    destination = client.addresses[version]
    inner = udp(ip_address(ADDRESSES[version]), ip_address(destination), dport=MARK)
    send_wrapped(pod, inner, in_udp=destination, as_it_is=destination)


def send_wrapped(pod: RunningPod, inner: bytes, *, in_udp: str, as_it_is: str) -> None:
    """The IP packet, once in UDP to the one address and once as the payload of IP to the other."""
    family, encapsulation = {4: (socket.AF_INET, IPIP), 6: (socket.AF_INET6, IPV6)}[ip_address(in_udp).version]
    for kind, protocol, end in (
        (socket.SOCK_DGRAM, 0, (in_udp, PORT)),
        (socket.SOCK_RAW, encapsulation, (as_it_is, 0)),
    ):
        with call_inside(pod.netns, partial(socket.socket, family, kind, protocol)) as made:
            made.sendto(inner, end)


def count_unsolicited(station: Station) -> int:
    listed = station.kernel.run("nft", "list", "counter", "inet", TABLE, UNSOLICITED)
    [packets] = re.findall(r"packets (\d+)", listed)
    return int(packets)


def is_guarded(station: Station, client: RunningPod, version: int) -> bool:
    name = CLIENTS[{4: Family.IPV4, 6: Family.IPV6}[version]].name
    return client.addresses[version] in station.kernel.run("nft", "list", "set", "inet", TABLE, name, check=False)


@versions
@pytest.mark.parametrize("remote", [False, True], ids=["of the same node", "of another node"])
def test_nobody_but_its_routers_sends_a_client_encapsulated_packets(
    world: World, egress: EgressUnderTest, client: RunningPod, version: int, *, remote: bool
) -> None:
    """Otherwise any pod speaks to it in the name of any host, past what NetworkPolicies say of the pod."""
    home = client.station
    [station] = [index for index, each in enumerate(world.stations) if (each is home) is not remote]
    with world.client(station=station) as stranger, Capture(client.netns) as wire:
        before = count_unsolicited(home)
        send_forged(stranger, client, version)
        wait_until(lambda: count_unsolicited(home) >= before + 2, what="both are counted")
        assert ask(client, world.external, ADDRESSES[version]) == egress.routers()[0].addresses[version]
        assert [packet for packet in wire.packets() if packet.source == stranger.addresses[version]] == []


@pytest.mark.slow
@versions
def test_without_the_check_anybody_does(world: World, client: RunningPod, version: int) -> None:
    home = client.station
    with (
        home.coild_with("--verify-routers=false"),
        world.client() as stranger,
        Capture(client.netns) as wire,
    ):
        send_forged(stranger, client, version)
        for protocol in (UDP, {4: IPIP, 6: IPV6}[version]):
            wire.wait_for(
                lambda packet, protocol=protocol: (
                    (packet.source, packet.protocol)  # type: ignore[misc]
                    == (stranger.addresses[version], protocol)
                ),
                what="at the client",
            )
    # And with it again, for a client from before.
    wait_until(lambda: is_guarded(home, client, version), what="the client is in the table")
    with world.client() as stranger, Capture(client.netns) as wire:
        before = count_unsolicited(home)
        send_forged(stranger, client, version)
        wait_until(lambda: count_unsolicited(home) >= before + 2, what="both are counted")
        assert ask(client, world.external, ADDRESSES[version]) != client.addresses[version]
        assert [packet for packet in wire.packets() if packet.source == stranger.addresses[version]] == []


@dataclass(frozen=True, slots=True)
class Attack:
    """What a pod has a router forward, by its Service and by its own address: whatever has these sources for each of
    these destinations. `kind` is what the router counts it as.
    """

    pod: RunningPod
    egress: EgressUnderTest
    sources: Sequence[str]
    destinations: Sequence[str]
    kind: str

    def launch(self) -> None:
        """Returns when the router has counted every packet as dropped."""
        [router] = self.egress.routers()
        version = ip_address(self.sources[0]).version
        # nftables' counters are read every few seconds.
        wait_until(
            lambda: f"coil_egress_nftables_{self.kind}_packets_total{{" in metrics(router), what="they were read"
        )
        before = count(router, self.kind, version)
        for source in self.sources:
            for destination in self.destinations:
                inner = udp(ip_address(source), ip_address(destination), dport=MARK)
                ends = self.egress.addresses[version], router.addresses[version]
                send_wrapped(self.pod, inner, in_udp=ends[0], as_it_is=ends[1])
        sent = 2 * len(self.sources) * len(self.destinations)
        wait_until(
            lambda: count(router, self.kind, version) >= before + sent,
            what=f"{sent} packets are counted as {self.kind}",
        )


def forwarded(packet: Packet) -> bool:
    """Whether it is what an attack is about, out of its tunnel."""
    return packet.protocol == UDP and packet.port == MARK


@versions
def test_a_router_serves_nobody_but_its_clients(
    world: World, egress: EgressUnderTest, client: RunningPod, version: int
) -> None:
    """Otherwise any pod leaves the cluster, and reaches pods that a NetworkPolicy protects from it, as the router."""
    [router] = egress.routers()
    with (
        world.client() as stranger,
        world.client(station=1) as protected,
        Capture(world.external.netns, keep=forwarded) as outside,
        Capture(protected.netns, keep=forwarded) as inside,
    ):
        Attack(
            stranger,
            egress,
            sources=[stranger.addresses[version], client.addresses[version]],
            destinations=[ADDRESSES[version], protected.addresses[version]],
            kind="unknown_client",
        ).launch()
        assert ask(client, world.external, ADDRESSES[version]) == router.addresses[version]
        assert ask(client, protected, protected.addresses[version]) == client.addresses[version]
        assert [*outside.packets(), *inside.packets()] == []


def test_a_router_leads_its_clients_only_where_its_egress_says(world: World) -> None:
    """And with their own sources, however a client has made the packet. An Egress for everything is not for pods."""
    families = world.description.families.value
    with (
        world.egress(destinations=[ADDRESSES[version] + LENGTHS[version] for version in families]) as narrow,
        world.egress(destinations=[EVERYWHERE[version] for version in families]) as wide,
        world.client(narrow.name, wide.name) as client,
        world.client(station=1) as protected,
        Capture(world.external.netns, keep=forwarded) as outside,
        Capture(protected.netns, keep=forwarded) as inside,
    ):
        for version in families:
            own, other = [client.addresses[version]], [protected.addresses[version]]
            router_pod = narrow.routers()[0].addresses[version]
            Attack(client, narrow, own, [NEIGHBOURS[version], *other], kind="other_destination").launch()
            Attack(client, wide, own, [*other, router_pod], kind="other_destination").launch()
            Attack(client, narrow, other, [ADDRESSES[version]], kind="unknown_client").launch()
            for egress, asked in ((narrow, ADDRESSES), (wide, NEIGHBOURS)):
                [router] = egress.routers()
                assert ask(client, world.external, asked[version]) == router.addresses[version]
            assert ask(client, protected, *other) == client.addresses[version]
        assert [*outside.packets(), *inside.packets()] == []


@versions
def test_much_goes_through_in_both_directions(
    world: World, egress: EgressUnderTest, client: RunningPod, version: int
) -> None:
    with Transfer(client, world.external, ADDRESSES[version], size=MEGABYTES << 20) as transfer:
        transfer.wait()
    assert transfer.seen == egress.routers()[0].addresses[version]


@versions
def test_a_pod_without_annotation_has_no_tunnel(world: World, egress: EgressUnderTest, version: int) -> None:
    with world.client() as pod:
        kernel = pod.kernel
        assert {link["ifname"] for link in kernel.ip("link")} - FALLBACKS == {"lo", "eth0"}
        assert {rule["priority"] for rule in kernel.ip("rule")} == {0, 32766, 32767}
        with Capture(pod.netns) as wire:
            assert ask(pod, world.external, ADDRESSES[version]) == pod.addresses[version]
        assert not wire.select(wrapped)


FALLBACKS = {"tunl0", "ip6tnl0", "sit0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0"}
"""What some modules put into every namespace."""


@versions
def test_what_a_router_translates_and_what_it_drops_is_counted(
    world: World, egress: EgressUnderTest, client: RunningPod, version: int
) -> None:
    [router] = egress.routers()
    own, outside = client.addresses[version], ADDRESSES[version]
    # nftables' counters are read every few seconds.
    wait_until(lambda: "coil_egress_nftables_invalid_packets_total{" in metrics(router), what="they were read")
    translated, dropped = count(router, "masqueraded", version), count(router, "invalid", version)
    assert ask(client, world.external, outside) == router.addresses[version]
    with Capture(world.external.netns) as wire:
        with client.socket(socket.SOCK_RAW, outside, socket.IPPROTO_TCP) as raw:
            raw.sendto(impossible_tcp(ip_address(own), ip_address(outside)), (outside, 0))
        wait_until(lambda: count(router, "invalid", version) > dropped, what="it is counted")
        assert ask(client, world.external, outside) == router.addresses[version]
        assert not wire.select(lambda packet: packet.protocol == TCP and packet.destination == outside)
    wait_until(lambda: count(router, "masqueraded", version) >= translated + 2, what="both questions are counted")
    assert sample(router, "coil_egress_nf_conntrack_entries_count") > 0


_FETCH = """
import sys
from http.client import HTTPConnection
connection = HTTPConnection("localhost", 8080, timeout=30)
connection.request("GET", "/metrics")
sys.stdout.write(connection.getresponse().read().decode())
"""


def metrics(router: RunningPod) -> str:
    """The page that Prometheus reads."""
    return router.kernel.run(sys.executable, "-IS", "-c", _FETCH)


def sample(router: RunningPod, name: str, **labels: str) -> float:
    """The value of the only series with these labels."""
    [value] = [
        each.value
        for family in text_string_to_metric_families(metrics(router))
        for each in family.samples
        if each.name == name and each.labels.items() >= labels.items()
    ]
    return float(value)


def count(router: RunningPod, kind: str, version: int) -> float:
    """Packets that its packet filter has counted."""
    return sample(router, f"coil_egress_nftables_{kind}_packets_total", protocol=f"ipv{version}")


def test_a_router_sets_every_metric_that_is_documented(
    world: World, egress: EgressUnderTest, client: RunningPod
) -> None:
    [router] = egress.routers()

    def silent() -> list[str]:
        return without_series([parse_exposition(metrics(router))], "coil-egress-agent")

    # nftables' counters are read every few seconds.
    world.kubelet.wait_until(lambda: not silent(), what="every metric has a series")


@pytest.mark.slow
def test_a_source_port_for_each_flow(world: World) -> None:
    """Then replies do not match what kube-proxy has translated: they come from the router's own address, and count."""
    with world.egress(fouSourcePortAuto=True) as egress, world.client(egress.name) as client:
        [router] = egress.routers()
        for version in client.addresses:
            there, back = observe(world, client, ADDRESSES[version], whom=router.addresses[version])
            assert there.destination == egress.addresses[version]
            assert back.source == router.addresses[version]
            assert PORT not in (there.source_port, back.source_port)


def test_two_egresses_on_one_client(world: World) -> None:
    """Each is for destinations of its own; the host sees the router of the one that a packet was for."""
    versions = world.description.families.value
    with (
        world.egress(destinations=[ADDRESSES[version] + LENGTHS[version] for version in versions]) as first,
        world.egress(destinations=[NEIGHBOURS[version] + LENGTHS[version] for version in versions]) as second,
        world.client(first.name, second.name) as client,
    ):
        for egress, asked in ((first, ADDRESSES), (second, NEIGHBOURS)):
            [router] = egress.routers()
            for version in versions:
                there, _ = observe(world, client, asked[version], whom=router.addresses[version])
                assert there.destination == egress.addresses[version]
