"""Real packets through the tables of the EIP data plane: what a server beyond the gateway sees of pods, and what nobody
is to see. The oracle is what sockets see, and counters of a table of the test's own.
"""

import socket
import struct
import subprocess
from collections.abc import Callable
from ipaddress import ip_address, ip_network

import pytest

from coil.crd.names import NodeName
from coil.eip.eip_table import TUNNEL_PORT, EipTableOptions, forward_shim, plan_eip_tables
from coil.eip.tunnel_plan import Peer
from coil.kernel.link import MacAddress
from coil.nft.element_sync import load_elements
from integration.netns.eip_world import (
    EIPS,
    GATEWAY,
    GATEWAY_NODE,
    LOCAL_POD,
    MACS,
    MARKS,
    OTHER_EIPS,
    OTHER_SERVER,
    POD,
    SERVER,
    SOURCE_NODE,
    TABLES,
    UNDERLAY,
    EipWorld,
    eip,
    nft,
    packets,
    view,
    wait_for,
)
from integration.netns.forged_packet import IPV4, IPV6, octets, send, udp
from integration.netns.netns import Netns, exchange, ping
from integration.packet_capture import Capture

pytestmark = pytest.mark.kernel

_SECONDS = 60.0
both_families = pytest.mark.parametrize("version", [4, 6])


@pytest.fixture
def world(new_netns: Callable[[], Netns]) -> EipWorld:
    world = EipWorld(new_netns)
    world.hold(*EIPS.values(), *OTHER_EIPS.values())
    return world


def seen(world: EipWorld, address: str, pod: Netns | None = None) -> str:
    """The source that the server sees of a pod's connection, which works both ways without a packet lost."""
    return exchange(pod or world.pod, world.server, ip_address(address))


@both_families
def test_the_server_sees_the_eip(world: EipWorld, version: int) -> None:
    world.tell([view()])
    world.load()
    assert seen(world, SERVER[version]) == EIPS[version]
    assert seen(world, SERVER[version], world.local_pod) == EIPS[version]


@both_families
def test_without_a_policy_nothing_changes(world: EipWorld, version: int) -> None:
    world.tell([view(destinations=(ip_network("198.51.100.0/24"),))])
    world.load()
    assert seen(world, SERVER[version]) == POD[version]
    assert seen(world, SERVER[version], world.local_pod) == LOCAL_POD[version]


@both_families
def test_each_destination_has_its_own(world: EipWorld, version: int) -> None:
    narrow = view("a", destinations=(ip_network(SERVER[4]), ip_network(SERVER[6])), eip=eip(OTHER_EIPS), priority=1)
    world.tell([view("b"), narrow])
    world.load()
    assert seen(world, SERVER[version]) == OTHER_EIPS[version]
    assert seen(world, OTHER_SERVER[version]) == EIPS[version]
    world.tell([view("b", priority=2), narrow])
    world.change()
    assert seen(world, SERVER[version]) == EIPS[version]


@both_families
@pytest.mark.parametrize("explicit", [True, False])
def test_the_nodes_own_address(world: EipWorld, version: int, explicit: bool) -> None:
    networks = (ip_network(SERVER[4]), ip_network(SERVER[6])) if explicit else ()
    world.tell([view("a", eip=None, destinations=networks, priority=1), view("b")])
    world.load()
    assert seen(world, SERVER[version]) == GATEWAY[version]
    assert seen(world, SERVER[version], world.local_pod) == GATEWAY[version]


@both_families
def test_ranges_of_sources(world: EipWorld, version: int) -> None:
    world.tell([view(pod_subnets=(ip_network("10.1.0.0/30"), ip_network("fd01::/126")))])
    world.load()
    assert seen(world, SERVER[version]) == EIPS[version]
    assert seen(world, SERVER[version], world.local_pod) == LOCAL_POD[version]


@both_families
def test_the_clusters_own_addresses_are_left_alone(world: EipWorld, version: int) -> None:
    world.tell([view()], cluster=(*CLUSTER_AND_SERVERS,))
    world.load()
    assert seen(world, SERVER[version]) == POD[version]


CLUSTER_AND_SERVERS = ("10.0.0.0/8", "172.16.0.0/12", "fd00::/8", "203.0.113.0/24", "2001:db8::/64")


@both_families
def test_marks_on_the_way(world: EipWorld, version: int) -> None:
    """The gateway's mark leads there, the source node's mark on the connection leads back."""
    probe = """
      table inet probe {
        counter marked { }
        counter saved { }
        counter restored { }
        chain pre {
          type filter hook prerouting priority -94;
          iifname pod0 meta mark 0x26000200 counter name marked
          iifname egress.vxlan ct direction original ct mark 0x26000100 meta mark 0x26000000 counter name saved
          iifname eth1 ct direction reply meta mark 0x26000100 counter name restored
        }
      }"""
    for netns in (world.source, world.gateway):
        nft(netns, probe)
    world.tell([view()])
    world.load()
    assert seen(world, SERVER[version]) == EIPS[version]
    there, here = packets(world.source, "probe"), packets(world.gateway, "probe")
    assert there["marked"] > 2
    assert there["marked"] == here["saved"]
    assert here["restored"] > 2


@both_families
def test_a_masquerade_of_somebody_else_loses(world: EipWorld, version: int) -> None:
    for netns in (world.source, world.gateway):
        nft(
            netns,
            "add table inet cni\n"
            "add chain inet cni post { type nat hook postrouting priority 100; }\n"
            "add rule inet cni post oifname != pod0 masquerade",
        )
    world.tell([view()])
    world.load()
    assert seen(world, SERVER[version]) == EIPS[version]
    assert seen(world, SERVER[version], world.local_pod) == EIPS[version]


@both_families
def test_a_service_is_what_stands_behind_it(world: EipWorld, version: int) -> None:
    """What is beyond the cluster has an EIP whatever the pod called it; kube-proxy's bits disturb no mark of ours."""
    virtual = {4: "10.96.0.1", 6: "fd96::1"}
    for version_, family in ((4, "ip"), (6, "ip6")):
        nft(
            world.source,
            f"""
            table {family} proxy {{
              chain pre {{
                type nat hook prerouting priority -100;
                {family} daddr {virtual[version_]} meta mark set meta mark or 0x4000 dnat to {SERVER[version_]}
              }}
            }}""",
        )
    world.tell([view()])
    world.load()
    with (
        world.server.socket(ip_address(SERVER[version])) as listener,
        world.pod.socket(ip_address(POD[version])) as pod,
    ):
        listener.bind((SERVER[version], 7))
        listener.listen()
        pod.connect((virtual[version], 7))
        accepted, peer = listener.accept()
        accepted.close()
    assert peer[0] == EIPS[version]


def datagram(netns: Netns, version: int) -> socket.socket:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    made = netns.call(lambda: socket.socket(family, socket.SOCK_DGRAM))
    made.settimeout(_SECONDS)
    return made


def lost(world: EipWorld, version: int, counter: str, *, at: Netns, pod: Netns | None = None) -> None:
    """A datagram to the server gets lost, is counted there, and never arrives."""
    with datagram(pod or world.pod, version) as asking, datagram(world.server, version) as answering:
        answering.bind((SERVER[version], 7))
        before = packets(at, "coil-eip")[counter]
        asking.sendto(b"lost", (SERVER[version], 7))
        wait_for(lambda: packets(at, "coil-eip")[counter] == before + 1)
        answering.setblocking(False)
        with pytest.raises(BlockingIOError):
            answering.recv(64)


@both_families
def test_nobody_can_carry_it(world: EipWorld, version: int) -> None:
    world.tell([view(node=None)])
    world.load()
    lost(world, version, "dropped_closed", at=world.source)
    world.tell([view(node=None, fail_open=True)])
    world.change()
    assert seen(world, SERVER[version]) == POD[version]


@both_families
def test_no_way_to_the_gateway(world: EipWorld, version: int) -> None:
    world.tell([view()])
    world.load()
    world.source.ip("-4" if version == 4 else "-6", "rule", "delete", "fwmark", "0x26000200")
    lost(world, version, "dropped_closed", at=world.source)


@both_families
def test_a_gateway_without_a_lease_carries_nothing(world: EipWorld, version: int) -> None:
    world.tell([view()])
    world.load()
    world.refresh(GATEWAY_NODE, 0)
    lost(world, version, "dropped_fenced", at=world.gateway)
    lost(world, version, "dropped_fenced", at=world.gateway, pod=world.local_pod)
    world.refresh(GATEWAY_NODE, 600_000)
    assert seen(world, SERVER[version]) == EIPS[version]


@both_families
def test_a_kernel_lease_expires_by_itself(world: EipWorld, version: int) -> None:
    world.tell([view()])
    world.load()
    world.refresh(GATEWAY_NODE, 1)
    wait_for(lambda: "expires" not in nft(world.gateway, "list set inet coil-eip alive"))
    lost(world, version, "dropped_fenced", at=world.gateway)


@both_families
def test_a_pod_that_nobody_knows_yet(world: EipWorld, version: int) -> None:
    """From its first packet on the server sees nothing or the EIP; without policies for it, its own address."""
    sources = {view().ref: {ip_address(address): SOURCE_NODE for address in POD.values()}}
    world.tell([view()], {})
    world.load()
    assert seen(world, SERVER[version]) == POD[version]
    world.let_pass(SOURCE_NODE, 0)
    lost(world, version, "dropped_closed", at=world.source)
    assert exchange(world.pod, world.source, ip_address(NODE[version])) == POD[version]
    world.tell([view()], sources)
    world.change()
    assert seen(world, SERVER[version]) == EIPS[version]
    world.tell([view()], {})
    world.indexes[SOURCE_NODE].set_known(map(ip_address, POD.values()))
    world.change()
    assert seen(world, SERVER[version]) == POD[version]


NODE = {4: "10.1.0.1", 6: "fd01::1"}


@both_families
def test_it_reaches_what_no_closed_policy_is_about(world: EipWorld, version: int) -> None:
    narrow = view(destinations=(ip_network(SERVER[4]), ip_network(SERVER[6])))
    world.tell([narrow, view("open", closed=False)], {})
    world.load()
    world.let_pass(SOURCE_NODE, 0)
    lost(world, version, "dropped_closed", at=world.source)
    assert seen(world, OTHER_SERVER[version]) == POD[version]
    world.tell([view("open", closed=False)], {})
    world.change()
    assert seen(world, SERVER[version]) == POD[version]


@both_families
def test_a_connection_of_an_unknown_source_goes_on(world: EipWorld, version: int) -> None:
    """What passes there for others than pods is held back only where it begins."""
    world.tell([view()], {})
    world.load()
    with datagram(world.pod, version) as asking, datagram(world.server, version) as answering:
        answering.bind((SERVER[version], 7))
        for number in range(3):
            if number == 2:
                world.let_pass(SOURCE_NODE, 0)
            asking.sendto(b"ask", (SERVER[version], 7))
            _, peer = answering.recvfrom(64)
            answering.sendto(b"answer", peer)
            assert asking.recv(64) == b"answer"


@both_families
def test_what_the_gateway_does_not_carry_goes_no_further(world: EipWorld, version: int) -> None:
    """Nodes that disagree for a moment: nothing goes round in circles, nothing leaves as somebody else."""
    world.tell([view()])
    world.load()
    index = world.indexes[GATEWAY_NODE]
    for policy in (view(node=SOURCE_NODE), view(node=None), view(node=None, fail_open=True)):
        index.set_policy(policy)
        world.change()
        lost(world, version, "dropped_stray", at=world.gateway)
    index.set_policy(view(node=None, pod_subnets=(ip_network("10.1.0.0/24"), ip_network("fd01::/64"))))
    world.change()
    lost(world, version, "dropped_closed", at=world.gateway)
    index.remove_policy(view().ref)
    world.change()
    lost(world, version, "dropped_stray", at=world.gateway)


@both_families
def test_a_stranger_in_the_tunnel(world: EipWorld, version: int) -> None:
    """No node, and a node whose hardware address is another one."""
    world.tell([view()])
    world.load()
    other = Peer(node=SOURCE_NODE, mark=0x26000300, mac=MACS[GATEWAY_NODE], addresses=UNDERLAY[SOURCE_NODE])
    for peers in ([], [other]):
        world.indexes[GATEWAY_NODE].set_peers(peers)
        world.change()
        lost(world, version, "dropped_foreign", at=world.gateway)


@both_families
@pytest.mark.parametrize("local", [False, True], ids=["through the tunnel", "of this node"])
def test_a_connection_does_not_outlive_its_eip_here(world: EipWorld, version: int, local: bool) -> None:
    world.tell([view()])
    world.load()
    pod = world.local_pod if local else world.pod
    with datagram(pod, version) as asking, datagram(world.server, version) as answering:
        answering.bind((SERVER[version], 7))
        asking.sendto(b"question", (SERVER[version], 7))
        assert answering.recvfrom(64)[1][0] == EIPS[version]
        world.hold(*OTHER_EIPS.values())
        world.tell([view(eip=eip(OTHER_EIPS))])
        world.change()
        asking.sendto(b"lost", (SERVER[version], 7))
        wait_for(lambda: packets(world.gateway, "coil-eip")["dropped_untranslated"] == 1)
        answering.setblocking(False)
        with pytest.raises(BlockingIOError):
            answering.recv(64)
    assert seen(world, SERVER[version]) == OTHER_EIPS[version]


@both_families
def test_a_connection_does_not_notice_a_new_agent(world: EipWorld, version: int) -> None:
    world.tell([view()])
    world.load()
    address = ip_address(SERVER[version])
    with world.server.socket(address) as listener, world.pod.socket(address) as connection:
        listener.bind((str(address), 0))
        listener.listen()
        connection.connect((str(address), listener.getsockname()[1]))
        accepted, _ = listener.accept()
        with accepted:
            for tables in (TABLES, plan_eip_tables(EipTableOptions(keep_source=False)), TABLES):
                for node, netns in world.nodes.items():
                    elements = world.indexes[node].elements()
                    netns.call(lambda tables=tables, elements=elements: load_elements(tables, elements))  # type: ignore[misc]
                connection.sendall(b"on we go")
                assert accepted.recv(64) == b"on we go"
                accepted.sendall(b"so do I")
                assert connection.recv(64) == b"so do I"


@both_families
def test_nobody_is_at_home_at_an_eip(world: EipWorld, version: int) -> None:
    """A segment of a connection that the gateway has not seen yet gets no reset, which would end it at the server."""
    world.tell([view()])
    world.load()
    probe = """
      table inet probe {
        counter answers { }
        chain inbound {
          type filter hook input priority 0;
          meta l4proto { tcp, udp } counter name answers
          icmp type destination-unreachable counter name answers
          icmpv6 type destination-unreachable counter name answers
        }
      }"""
    with datagram(world.server, version) as asking:
        asking.sendto(b"arp first", (EIPS[version], 9))
        wait_for(lambda: neighbour(world.server, EIPS[version]))
        nft(world.server, probe)
        asking.sendto(b"anybody", (EIPS[version], 9))
        ping(world.server, EIPS[version])  # behind what was sent
    assert packets(world.server, "probe")["answers"] == 0


def neighbour(netns: Netns, address: str) -> bool:
    return any(entry.get("lladdr") for entry in netns.read("neighbour", "show", address))


@both_families
def test_nobody_hears_where_an_eip_is_without_a_lease(world: EipWorld, version: int) -> None:
    world.tell([view()])
    world.load()
    world.refresh(GATEWAY_NODE, 0)
    with pytest.raises(TimeoutError):
        ping(world.server, EIPS[version], seconds=0.5)
    assert not neighbour(world.server, EIPS[version])
    world.refresh(GATEWAY_NODE, 600_000)
    world.server.ip("neighbour", "flush", "all")
    ping(world.server, EIPS[version])


@both_families
def test_a_forward_policy_of_drop(world: EipWorld, version: int) -> None:
    program = "iptables" if version == 4 else "ip6tables"
    world.tell([view()])
    world.load()
    for netns in (world.source, world.gateway):
        inside = ["ip", "netns", "exec", netns.name, program]
        subprocess.run([*inside, "-P", "FORWARD", "DROP"], check=True, timeout=_SECONDS)
        for rule in forward_shim(EipTableOptions()):
            subprocess.run([*inside, "-I", "FORWARD", *rule], check=True, timeout=_SECONDS)
    assert seen(world, SERVER[version]) == EIPS[version]


@both_families
def test_segments_fit_into_the_tunnel(world: EipWorld, version: int) -> None:
    world.tell([view()])
    world.load()
    address = ip_address(SERVER[version])
    with world.server.socket(address) as listener, world.pod.socket(address) as connection:
        listener.bind((str(address), 0))
        listener.listen()
        connection.connect((str(address), listener.getsockname()[1]))
        accepted, _ = listener.accept()
        with accepted:
            for end in (connection, accepted):
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= 1400 - (40 if version == 4 else 60)


MASQUERADE = """table inet masquerading {
    chain out {
        type nat hook postrouting priority srcnat
        oifname "eth*" masquerade
    }
}
"""
"""As other CNI plugins do it."""


def in_tunnel(packet: bytes, *, mac: MacAddress = MACS[SOURCE_NODE]) -> bytes:
    """The packet as the node with that tunnel sends it to the gateway through the tunnel (RFC 7348)."""
    ether_type = IPV4 if packet[0] >> 4 == 4 else IPV6
    frame = octets(MACS[GATEWAY_NODE]) + octets(mac) + struct.pack("!H", ether_type) + packet
    return struct.pack("!II", 0x08000000, 100 << 8) + frame


@both_families
def test_nobody_but_nodes_speaks_through_the_tunnel(world: EipWorld, version: int) -> None:
    """A plain UDP socket would do, as the hardware address of a node follows from its name. And the node's address is
    that of its pods, where it masquerades what they send to other nodes.
    """
    world.tell([view()])
    world.load()
    nft(world.source, MASQUERADE)
    forged = in_tunnel(udp(ip_address(POD[version]), ip_address(SERVER[version]), dport=7))
    with datagram(world.server, version) as answering:
        answering.bind((SERVER[version], 7))
        answering.settimeout(_SECONDS)
        # A node may: that is what the tunnel is for.
        send_to_tunnel(world.source, 4, forged)
        assert answering.recvfrom(64)[1][0] == EIPS[version]
        for sender, node in ((world.pod, world.source), (world.server, world.gateway)):
            for outer in (4, 6):
                before = packets(node, "coil-eip")["dropped_foreign"]
                send_to_tunnel(sender, outer, forged)
                wait_for(
                    lambda node=node, before=before: packets(node, "coil-eip")["dropped_foreign"] == before + 1  # type: ignore[misc]
                )
        answering.setblocking(False)
        with pytest.raises(BlockingIOError):
            answering.recv(64)


def add_third_node(world: EipWorld) -> tuple[Peer, Peer]:
    """Have the gateway know one more node, which an attacker has; returns the source's node, and that one."""
    own = Peer(node=SOURCE_NODE, mark=MARKS[SOURCE_NODE], mac=MACS[SOURCE_NODE], addresses=UNDERLAY[SOURCE_NODE])
    third = Peer(
        node=NodeName("third"),
        mark=0x26000300,
        mac=MacAddress("02:00:00:00:00:03"),
        addresses=(ip_address("172.16.0.3"),),
    )
    world.indexes[GATEWAY_NODE].set_peers([own, third])
    return own, third


@both_families
def test_a_node_speaks_in_its_own_name_only(world: EipWorld, version: int) -> None:
    """Whoever has root on one node knows the hardware addresses of all tunnels."""
    world.tell([view()])
    own, third = add_third_node(world)
    world.load()
    packet = udp(ip_address(POD[version]), ip_address(SERVER[version]), dport=7)
    with datagram(world.server, version) as answering:
        answering.bind((SERVER[version], 7))
        answering.settimeout(_SECONDS)
        for mac, arrives in ((own.mac, True), (third.mac, False), (own.mac, True)):
            before = packets(world.gateway, "coil-eip")["dropped_foreign"]
            send_to_tunnel(world.source, 4, in_tunnel(packet, mac=mac))
            if arrives:
                assert answering.recvfrom(64)[1][0] == EIPS[version]
            wait_for(lambda: packets(world.gateway, "coil-eip")["dropped_foreign"] == before + (not arrives))  # noqa: B023
        answering.setblocking(False)
        with pytest.raises(BlockingIOError):
            answering.recv(64)


@both_families
def test_a_node_speaks_for_its_own_pods_only(world: EipWorld, version: int) -> None:
    """Whoever has root on one node can send as a pod of another one, through the node's own tunnel. The conversation of
    that pod goes on: its node, not the attacker's, gets the replies.
    """
    world.tell([view()])
    _, third = add_third_node(world)
    world.load()
    world.source.ip("address", "add", "172.16.0.3/24", "dev", "eth0")
    with datagram(world.pod, version) as asking, datagram(world.server, version) as answering:
        answering.bind((SERVER[version], 7))
        answering.settimeout(_SECONDS)
        asking.settimeout(_SECONDS)
        asking.sendto(b"question", (SERVER[version], 7))
        whom = answering.recvfrom(64)[1]
        assert whom[0] == EIPS[version]
        port = asking.getsockname()[1]
        begun = udp(ip_address(POD[version]), ip_address(SERVER[version]), sport=port, dport=7)
        for packet in (begun, udp(ip_address(POD[version]), ip_address(SERVER[version]), dport=7)):
            before = packets(world.gateway, "coil-eip")["dropped_stray"]
            send_to_tunnel(world.source, 4, in_tunnel(packet, mac=third.mac), source=str(third.addresses[0]))
            wait_for(lambda: packets(world.gateway, "coil-eip")["dropped_stray"] == before + 1)  # noqa: B023
        answering.sendto(b"answer", whom)
        assert asking.recv(64) == b"answer"
        answering.setblocking(False)
        with pytest.raises(BlockingIOError):
            answering.recv(64)


def send_to_tunnel(sender: Netns, version: int, payload: bytes, *, source: str = "") -> None:
    """To the gateway's end, over an underlay of that version."""
    with datagram(sender, version) as plain:
        if source:
            plain.bind((source, 0))
        plain.sendto(payload, (str(UNDERLAY[GATEWAY_NODE][version == 6]), TUNNEL_PORT))


@both_families
@pytest.mark.parametrize("verified", [False, True])
def test_nobody_leaves_with_the_address_of_anothers_policy(world: EipWorld, version: int, verified: bool) -> None:
    """A pod of this node sends as another one of it, whose policy this node carries."""
    everybody = {ip_address(pods[version]): GATEWAY_NODE for pods in (POD, LOCAL_POD)}
    world.tell([view()], {view().ref: everybody})
    world.load()
    tables = plan_eip_tables(EipTableOptions(verify_source=verified))
    world.gateway.call(lambda: load_elements(tables, world.indexes[GATEWAY_NODE].elements()))
    assert seen(world, SERVER[version], world.local_pod) == EIPS[version]
    with Capture(world.server) as outside:
        send_as(world, POD[version], version)
        if verified:
            wait_for(lambda: packets(world.gateway, "coil-eip")["dropped_spoofed"] == 1)
            # What is forwarded takes the same way, and would be there before this.
            assert seen(world, SERVER[version], world.local_pod) == EIPS[version]
        else:
            wait_for(lambda: any(each.port == 4711 for each in outside.packets()))
    assert [str(each.source) for each in outside.packets() if each.port == 4711] == [EIPS[version]] * (not verified)


@both_families
def test_pods_of_this_node_are_no_pods_of_another_node(world: EipWorld, version: int) -> None:
    """Where nobody verifies sources, either: what another node's pods may do here, they may by its tunnel."""
    world.tell([view()])
    world.load()
    with Capture(world.server) as outside:
        send_as(world, POD[version], version)
        wait_for(lambda: any(each.port == 4711 for each in outside.packets()))
    assert [str(each.source) for each in outside.packets() if each.port == 4711] == [POD[version]]


def send_as(world: EipWorld, source: str, version: int) -> None:
    """From the gateway's own pod to the server."""
    pod, node = world.local_pod.link("eth0"), world.gateway.link("pod0")
    assert pod is not None
    assert node is not None
    head = octets(node["address"]) + octets(pod["address"]) + struct.pack("!H", IPV4 if version == 4 else IPV6)
    send(world.local_pod, head + udp(ip_address(source), ip_address(SERVER[version]), dport=4711))
