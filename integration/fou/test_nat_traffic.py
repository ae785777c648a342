"""What goes over the wires with egress NAT: captures are the oracle, and what sockets at both ends see."""

import hashlib
import random
import socket
import threading
from collections.abc import AsyncIterator
from ipaddress import ip_address, ip_network

import pytest

from coil.egress.gateway import Replies, SourcePort, TunnelPolicy
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.kernel.route import DEFAULT_NETWORKS
from integration.fou.nat_world import SECONDS, NatWorld, ask, bound, lines, unbound
from integration.nat_stage import OUTSIDE, SERVICE, Host, NatStage
from integration.packet_capture import Capture, Packet
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

PORT = 5555
LARGE = 8 << 20
families = pytest.mark.parametrize("family", list(Family))
source_ports = pytest.mark.parametrize("source_port", list(SourcePort))


@pytest.fixture
async def world() -> AsyncIterator[NatWorld]:
    with NatStage() as stage:
        async with NatWorld(stage) as world:
            yield world


def wrapped(packets: list[Packet], source: IPAddress) -> list[Packet]:
    """The packets of a tunnel that `source` sent."""
    return [packet for packet in packets if packet.inner is not None and packet.source == source]


@families
@source_ports
async def test_there_and_back_through_the_tunnel(world: NatWorld, family: Family, source_port: SourcePort) -> None:
    await world.connect(source_port)
    stage = world.stage
    client, router, outside = (host.addresses[family] for host in (stage.client, stage.router, stage.outside))
    with Capture(stage.client.netns) as wire, Capture(stage.outside.netns) as uplink:
        assert ask(stage.client, stage.outside, family) == router
    [there], [back] = wrapped(wire.packets(), client), wrapped(wire.packets(), router)
    assert len(wire.packets()) == 2
    assert (there.destination, there.port, there.ttl) == (router, PORT, 225)
    # The node forwarded the way back, which took one of its hops.
    assert (back.destination, back.port, back.ttl) == (client, PORT, 224)
    for packet in (there, back):
        assert (packet.source_port == PORT) == (source_port is SourcePort.FIXED)
        assert packet.inner is not None
        assert packet.length - packet.inner.length == (28 if family is Family.IPV4 else 48)
    assert there.inner is not None
    assert (there.inner.source, there.inner.destination) == (client, outside)
    assert [(packet.source, packet.destination) for packet in uplink.packets()] == [
        (router, outside),
        (outside, router),
    ]


def source_seen(sending: Host, receiving: Host, family: Family) -> IPAddress:
    """Of a datagram. There is no way back to a client's own address."""
    with (
        unbound(sending, family, socket.SOCK_DGRAM) as one,
        bound(receiving, family, socket.SOCK_DGRAM) as other,
    ):
        one.sendto(b"!", other.getsockname())
        return ip_address(other.recvfrom(64)[1][0])


@families
async def test_the_clusters_own_networks_are_reached_without_the_tunnel(world: NatWorld, family: Family) -> None:
    """Where they are public, and the Egress is for everything; a change reaches a running pod."""
    await world.connect()
    stage = world.stage
    client, router = (host.addresses[family] for host in (stage.client, stage.router))
    everything = world.gateway(destinations=tuple(DEFAULT_NETWORKS.values()))
    for cluster, seen in (((), router), (tuple(OUTSIDE.values()), client), ((), router)):
        await world.sync(everything, cluster=cluster)
        assert source_seen(stage.client, stage.outside, family) == seen
    # Where the Egress names a part of them, that is served.
    part = ip_network(stage.outside.addresses[family])
    await world.sync(world.gateway(destinations=(*DEFAULT_NETWORKS.values(), part)), cluster=tuple(OUTSIDE.values()))
    assert source_seen(stage.client, stage.outside, family) == router
    await world.sync()
    version = "-4" if family is Family.IPV4 else "-6"
    assert not lines(stage.client.netns, "ip", version, "route", "show", "table", "all", "proto", "30")


@families
@pytest.mark.parametrize("source_port", [SourcePort.FIXED, pytest.param(SourcePort.AUTO, marks=pytest.mark.slow)])
async def test_a_large_transfer_both_ways(world: NatWorld, family: Family, source_port: SourcePort) -> None:
    await world.connect(source_port)
    stage = world.stage
    with Capture(stage.outside.netns) as uplink:
        assert exchange(stage.client, stage.outside, family, LARGE) == str(stage.router.addresses[family])
    # Links that have just come up still tell the wire of their groups (MLD).
    between = [packet for packet in uplink.packets() if not packet.destination.is_multicast]
    assert {packet.source for packet in between} == {stage.router.addresses[family], stage.outside.addresses[family]}
    invalid = [counter for counter in await world.router.counters() if str(counter.kind) == "invalid"]
    assert [counter.packets for counter in invalid] == [0, 0]


def exchange(client: Host, server: Host, family: Family, size: int) -> str:
    """Random bytes both ways at once over one TCP connection, complete and unharmed; whom the server saw."""
    up, down = random.Random(1).randbytes(size), random.Random(2).randbytes(size)
    seen: list[str] = []
    received: dict[str, str] = {}

    def side(connection: socket.socket, name: str, data: bytes) -> None:
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        digest, left = hashlib.sha256(), size
        while left:
            chunk = connection.recv(min(left, 1 << 16))
            assert chunk, "the connection ended early"
            digest.update(chunk)
            left -= len(chunk)
        sender.join()
        received[name] = digest.hexdigest()

    def serve(listener: socket.socket) -> None:
        accepted, peer = listener.accept()
        with accepted:
            accepted.settimeout(SECONDS)
            seen.append(peer[0])
            side(accepted, "server", down)

    with bound(server, family, socket.SOCK_STREAM) as listener, unbound(client, family, socket.SOCK_STREAM) as calling:
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        calling.connect(listener.getsockname())
        side(calling, "client", up)
        thread.join()
    assert received == {"server": hashlib.sha256(up).hexdigest(), "client": hashlib.sha256(down).hexdigest()}
    return seen[0]


@families
async def test_what_fits_into_a_tunnel_is_sent_in_one_piece(world: NatWorld, family: Family) -> None:
    await world.connect()
    stage = world.stage
    headers = 28 if family is Family.IPV4 else 48
    largest = 1500 - headers - (20 if family is Family.IPV4 else 40) - 8
    with Capture(stage.client.netns) as wire:
        ask(stage.client, stage.outside, family, size=largest)
    assert [packet.length for packet in wire.packets()] == [1500, 1500]


@families
async def test_what_does_not_fit_is_cut_where_it_is_sent(world: NatWorld, family: Family) -> None:
    """A client knows what fits. The outside host does not, and is told by the router: path MTU discovery works."""
    await world.connect()
    stage = world.stage
    mtu = 1472 if family is Family.IPV4 else 1452
    # More than the tunnel's MTU, and no more than a wire's.
    large = b"x" * (1490 - (28 if family is Family.IPV4 else 48))
    router = str(stage.router.addresses[family])
    with (
        unbound(stage.client, family, socket.SOCK_DGRAM) as one,
        bound(stage.outside, family, socket.SOCK_DGRAM) as other,
        Capture(stage.client.netns) as wire,
    ):
        one.sendto(large, other.getsockname())
        question, peer = other.recvfrom(1 << 16)
        assert (question, peer[0]) == (large, router)
        other.sendto(large, peer)
        wait_until(
            lambda: f"mtu {mtu}" in " ".join(lines(stage.outside.netns, "ip", "route", "get", router)),
            what="the outside host knows what fits",
        )
        other.sendto(large, peer)
        assert one.recv(1 << 16) == large
    assert max(packet.length for packet in wire.packets()) <= 1500


def serve_by_node(world: NatWorld) -> None:
    """The node sends what is for the Service's addresses to the router, as kube-proxy does."""
    lines(world.stage.node, "nft", "add table inet service")
    hook = "type nat hook prerouting priority dstnat; policy accept;"
    lines(world.stage.node, "nft", f"add chain inet service prerouting {{ {hook} }}")
    for family, word in ((Family.IPV4, "ip"), (Family.IPV6, "ip6")):
        router = world.stage.router.addresses[family]
        target = f"{word} to {router}" if family is Family.IPV4 else f"{word} to [{router}]"
        rule = f"{word} daddr {SERVICE[family]} udp dport {PORT} dnat {target}"
        lines(world.stage.node, "nft", f"add rule inet service prerouting {rule}")


@families
async def test_a_router_answers_from_its_own_address(world: NatWorld, family: Family) -> None:
    serve_by_node(world)
    stage = world.stage
    stage.client.netns.set_sysctl("net/ipv4/conf/all/rp_filter", "1")
    stage.client.netns.set_sysctl("net/ipv4/conf/eth0/rp_filter", "1")
    await world.router.add_peers(tuple(stage.client.addresses.values()), SourcePort.AUTO)
    await world.sync(world.gateway(addresses=tuple(SERVICE.values()), source_port=SourcePort.AUTO))
    with Capture(stage.client.netns) as wire:
        assert ask(stage.client, stage.outside, family) == stage.router.addresses[family]
    client = stage.client.addresses[family]
    ends = [(packet.source, packet.destination) for packet in wire.packets()]
    assert ends == [(client, SERVICE[family]), (stage.router.addresses[family], client)]


@families
async def test_a_fixed_port_lets_the_service_answer(world: NatWorld, family: Family) -> None:
    serve_by_node(world)
    stage = world.stage
    await world.router.add_peers(tuple(stage.client.addresses.values()), SourcePort.FIXED)
    await world.sync(world.gateway(addresses=tuple(SERVICE.values())))
    with Capture(stage.client.netns) as wire:
        assert ask(stage.client, stage.outside, family) == stage.router.addresses[family]
    client = stage.client.addresses[family]
    ends = [(packet.source, packet.destination) for packet in wire.packets()]
    assert ends == [(client, SERVICE[family]), (SERVICE[family], client)]


def plug_elsewhere(world: NatWorld) -> Host:
    """A pod with eth0 in the network of another plugin, and the default routes there; `net1` leads to pods."""
    stage = world.stage
    pod, elsewhere = stage.new_netns(), stage.new_netns()
    pod.ip("link", "add", "eth0", "type", "veth", "peer", "name", "other", "netns", elsewhere.name)
    elsewhere.ip("link", "set", "other", "up")
    pod.ip_batch(
        [
            "link set eth0 up",
            "address add 10.99.0.2/24 dev eth0",
            "address add fd99::2/64 dev eth0 nodad",
            "route add default via 10.99.0.1",
            "route add default via fd99::1",
        ]
    )
    return stage.add_second_interface(pod, 6)


@families
@source_ports
async def test_the_tunnel_of_another_interface_than_eth0(
    world: NatWorld, family: Family, source_port: SourcePort
) -> None:
    """It starts from that interface's address, has its MTU, and nothing leaves by eth0."""
    pod = plug_elsewhere(world)
    pod.netns.ip("link", "set", "net1", "mtu", "1400")
    await world.router.add_peers(tuple(pod.addresses.values()), source_port)
    policy = TunnelPolicy(uplink=LinkName("net1"))
    await world.sync(world.gateway(source_port=source_port), host=pod, policy=policy)
    own, router = pod.addresses[family], world.stage.router.addresses[family]
    with Capture(pod.netns, "net1") as wire, Capture(pod.netns, "eth0") as other:
        assert ask(pod, world.stage.outside, family) == router
    assert [(packet.source, packet.destination, packet.inner is not None) for packet in wire.packets()] == [
        (own, router, True),
        (router, own, True),
    ]
    assert wire.packets()[0].inner.source == own  # type: ignore[union-attr]
    assert other.packets() == []
    mtu = 1400 - (28 if family is Family.IPV4 else 48)
    assert mtu in {link["mtu"] for link in pod.netns.read("link") if link["ifname"].startswith("fou")}
    await world.sync(host=pod, policy=policy)
    version = "-4" if family is Family.IPV4 else "-6"
    assert not lines(pod.netns, "ip", version, "route", "show", "table", "all", "proto", "30")


@families
async def test_a_pod_without_tunnels_is_not_helped(world: NatWorld, family: Family) -> None:
    await world.connect()
    other = world.stage.add_pod(5)
    with (
        unbound(other, family, socket.SOCK_DGRAM) as asking,
        bound(world.stage.outside, family, socket.SOCK_DGRAM) as answering,
        Capture(other.netns) as wire,
    ):
        asking.sendto(b"question", answering.getsockname())
        assert answering.recvfrom(64)[1][0] == str(other.addresses[family])
    assert [packet.inner for packet in wire.packets()] == [None]


@families
async def test_inside_the_cluster_nothing_is_wrapped(world: NatWorld, family: Family) -> None:
    await world.connect()
    other = world.stage.add_pod(5)
    with Capture(world.stage.client.netns) as wire:
        assert ask(world.stage.client, other, family) == world.stage.client.addresses[family]
    assert [packet.inner for packet in wire.packets()] == [None, None]


@families
@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
async def test_who_comes_in_by_the_uplink_is_answered_there(
    world: NatWorld, family: Family, kind: socket.SocketKind
) -> None:
    """Originating-only: the outside host can reach the client, and is answered without a tunnel."""
    stage = world.stage
    await world.router.add_peers(tuple(stage.client.addresses.values()), SourcePort.FIXED)
    await world.sync(world.gateway(), replies=Replies.WHERE_THEY_CAME_FROM)
    version, gateway = ("-4", "169.254.1.1") if family is Family.IPV4 else ("-6", "fe80::1")
    client = stage.client.addresses[family]
    stage.outside.netns.ip(version, "route", "add", str(client), "via", gateway, "dev", "eth0")
    with Capture(stage.client.netns) as wire:
        if kind is socket.SOCK_STREAM:
            exchange(stage.outside, stage.client, family, 1 << 16)
        else:
            assert ask(stage.outside, stage.client, family) == stage.outside.addresses[family]
    assert [packet for packet in wire.packets() if packet.inner is not None] == []
    # What the client itself begins goes through the tunnel as ever.
    assert ask(stage.client, stage.outside, family) == stage.router.addresses[family]


@families
async def test_by_route_who_comes_in_is_answered_through_the_tunnel(world: NatWorld, family: Family) -> None:
    await world.connect()
    stage = world.stage
    version, gateway = ("-4", "169.254.1.1") if family is Family.IPV4 else ("-6", "fe80::1")
    client = stage.client.addresses[family]
    stage.outside.netns.ip(version, "route", "add", str(client), "via", gateway, "dev", "eth0")
    with (
        unbound(stage.outside, family, socket.SOCK_DGRAM) as asking,
        bound(stage.client, family, socket.SOCK_DGRAM) as answering,
    ):
        asking.sendto(b"question", answering.getsockname())
        _, peer = answering.recvfrom(64)
        answering.sendto(b"answer", peer)
        assert asking.recvfrom(64)[1][0] == str(stage.router.addresses[family])


@families
async def test_a_router_with_a_public_address(world: NatWorld, family: Family) -> None:
    """The default route leads into the tunnel, and so would the way to the router if nothing kept it out."""
    stage = world.stage
    public = ip_address("198.51.100.3") if family is Family.IPV4 else ip_address("2001:db8:2::3")
    router = stage.add_pod_at("public", {family: public})
    version, gateway = ("-4", "169.254.1.1") if family is Family.IPV4 else ("-6", "fe80::1")
    stage.outside.netns.ip(version, "route", "add", str(public), "via", gateway, "dev", "eth0")
    network = await world.open_router(router)
    await network.add_peers(tuple(stage.client.addresses.values()), SourcePort.FIXED)
    everything = ip_network("0.0.0.0/0" if family is Family.IPV4 else "::/0")
    stage.client.netns.set_sysctl("net/ipv4/conf/eth0/rp_filter", "1")
    await world.sync(world.gateway(router=router, destinations=(everything,)))
    with Capture(stage.client.netns) as wire:
        assert ask(stage.client, stage.outside, family) == public
    assert [(packet.source, packet.inner is not None) for packet in wire.packets()] == [
        (stage.client.addresses[family], True),
        (public, True),
    ]
