"""A node's network for addresses of interfaces, in the kernel, with traffic: by which interface and with which address
packets leave, who is translated, and that what others change is as it was within a moment.

The oracle are `ip -j`, `nft -j`, and a router that drops what an interface may not send.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address
from itertools import count
from typing import Any

import pytest

from coil.eni.interface import InterfaceId
from coil.eni.node_plan import NodeState
from coil.kernel.nft_table import PortChoice
from coil.netlink.error import NetlinkError, PodCheckError
from coild.eni.node_network import REAPPLY_SECONDS
from integration.netns.eip_world import nft
from integration.netns.eni_world import (
    IN_SECOND,
    IN_THIRD,
    IN_VPC,
    LINKS,
    METADATA,
    MTU,
    OUTSIDE,
    PRIMARIES,
    STATE,
    THIRD_CIDR,
    EniNode,
    HearingKernel,
    attach_link,
    attached,
    bare_node,
    counted,
    interface_of,
    listed,
    watched_node,
)
from integration.netns.netns import Netns, exchange
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

POD_0, POD_1, POD_1B, POD_2 = map(IPv4Address, ("10.1.0.33", "10.1.1.33", "10.1.1.34", "10.1.16.33"))
ALL = frozenset(each.interface.id for each in STATE.interfaces)
_SECONDS = 60.0
_MEND_SECONDS = REAPPLY_SECONDS / 2
"""Less than the time between two comparisons that nothing prompts."""


@dataclass
class World:
    node: EniNode
    pods: dict[IPv4Address, Netns]

    async def exchange(self, pod: IPv4Address, destination: IPv4Address) -> str:
        """Whom the destination saw when the pod asked it."""
        return await asyncio.to_thread(exchange, self.pods[pod], self.node.vpc, destination)

    async def ask_pod(self, source: IPv4Address, pod: IPv4Address) -> str:
        """Whom the pod saw when somebody outside of the node asked it."""

        def ask() -> str:
            with self.pods[pod].socket(pod) as listener, self.node.vpc.socket(source) as asking:
                listener.bind((str(pod), 0))
                listener.listen()
                asking.bind((str(source), 0))
                asking.connect((str(pod), listener.getsockname()[1]))
                accepted, peer = listener.accept()
                with accepted:
                    accepted.settimeout(_SECONDS)
                    asking.sendall(b"?")
                    assert accepted.recv(1) == b"?"
                    accepted.sendall(b"!")
                    assert asking.recv(1) == b"!"
                return str(peer[0])

        return await asyncio.to_thread(ask)


@pytest.fixture
async def bare() -> AsyncIterator[EniNode]:
    """The node as it starts."""
    async with bare_node() as node:
        yield node


@pytest.fixture
async def world(bare: EniNode) -> AsyncIterator[World]:
    """With a pod on each interface, and watched."""
    async with watched_node(bare, (POD_0, POD_1, POD_2)) as pods:
        yield World(bare, pods)


def rules(netns: Netns) -> list[tuple[int, str, str, str]]:
    """Priority, source, mark and table of those of ours, in IPv4."""
    return [
        (
            rule["priority"],
            rule["src"],
            "/".join(rule[key] for key in ("fwmark", "fwmask") if key in rule),
            rule["table"],
        )
        for rule in netns.read("-4", "rule")
        if rule["protocol"] == "30"
    ]


def routes(netns: Netns, table: int) -> list[tuple[str, str | None, str]]:
    return [
        (each["dst"], each.get("gateway"), each["dev"] if each["type"] == "unicast" else each["type"])
        for each in netns.read("route", "show", "table", str(table))
    ]


async def test_rules_and_tables(world: World) -> None:
    node = world.node.netns
    assert rules(node) == [
        (512, "all", "", "116"),
        (1024, "all", "0x80/0x80", "main"),
        (1025, "all", "0x41/0x7f", "10001"),
        (1025, "all", "0x42/0x7f", "10002"),
        (1536, "10.1.1.10", "", "10001"),
        (1536, "10.1.16.10", "", "10002"),
        (1536, "10.1.1.33", "", "10001"),
        (1536, "10.1.16.33", "", "10002"),
    ]
    for device in (1, 2):
        gateway = str(attached(device).gateway)
        assert routes(node, 10_000 + device) == [
            ("default", gateway, LINKS[device]),
            ("default", None, "unreachable"),
            (gateway, None, LINKS[device]),
        ]
    main = {(destination, device) for destination, _, device in routes(node, 254)}
    assert main == {("default", LINKS[0]), (str(attached(0).subnet), LINKS[0])}


async def test_links_are_found_by_their_hardware_address(bare: EniNode) -> None:
    await bare.node.apply(STATE)
    for device in (1, 2):
        link = bare.netns.link(LINKS[device])
        assert link is not None
        assert ("UP" in link["flags"], link["mtu"]) == (True, MTU)
        assert [each["local"] for each in link["addr_info"] if each["family"] == "inet"] == [str(PRIMARIES[device])]


async def test_a_strict_reverse_path_filter_is_made_loose_and_no_other_is_touched(bare: EniNode) -> None:
    netns = bare.netns

    async def filters(*before: str, all_links: str) -> list[str]:
        paths = [f"net/ipv4/conf/{name}/rp_filter" for name in ("all", "default", *LINKS)]
        for path, value in zip(paths, (all_links, "1", *before), strict=True):
            netns.set_sysctl(path, value)
        await bare.node.apply(STATE)
        assert [netns.sysctl(path) for path in paths[:2]] == [all_links, "1"]
        return [netns.sysctl(path) for path in paths[2:]]

    assert await filters("1", "1", "0", all_links="1") == ["2", "2", "2"]
    assert await filters("0", "1", "2", all_links="0") == ["0", "2", "2"]
    assert await filters("0", "1", "2", all_links="2") == ["0", "1", "2"]


async def test_inside_the_vpc_pods_are_seen_by_their_own_addresses(world: World) -> None:
    for pod in world.pods:
        for destination in (IN_VPC, IN_SECOND):
            assert await world.exchange(pod, destination) == str(pod)


async def test_the_world_sees_the_primary_address(world: World) -> None:
    for pod in world.pods:
        assert await world.exchange(pod, OUTSIDE) == str(PRIMARIES[0])


@pytest.mark.parametrize("ports", PortChoice)
async def test_source_ports_of_what_is_translated(world: World, ports: PortChoice) -> None:
    """Of pods that send from the same ports to the same destination."""
    node = world.node
    await node.node.apply(replace(STATE, snat_ports=ports))

    def seen(pod: IPv4Address, source_port: int) -> int:
        with node.vpc.socket(OUTSIDE) as listener, world.pods[pod].socket(OUTSIDE) as asking:
            # Never one twice, of which the kernel may still know a connection.
            listener.bind((str(OUTSIDE), next(free)))
            listener.listen()
            asking.bind((str(pod), source_port))
            asking.connect(listener.getsockname())
            accepted, peer = listener.accept()
            accepted.close()
            assert peer[0] == str(PRIMARIES[0])
            return int(peer[1])

    own, free = range(40_000, 40_008), count(20_000)
    for pod in world.pods:
        found = [await asyncio.to_thread(seen, pod, port) for port in own]
        # That all of them are drawn as they were is 1 in 10^38.
        assert (found == [*own]) is (ports is PortChoice.OWN)
    rules = str(listed(node.netns, "chain", "inet", "coil-eni", "translate"))
    assert (f"'{ports.value}'" in rules) is (ports is not PortChoice.OWN)


async def test_pods_of_a_node_see_each_other(world: World) -> None:
    for client, server in ((POD_0, POD_1), (POD_1, POD_2), (POD_2, POD_0)):
        assert await asyncio.to_thread(exchange, world.pods[client], world.pods[server], server) == str(client)
        assert await asyncio.to_thread(exchange, world.node.netns, world.pods[server], server)


async def test_whoever_asks_a_pod_from_outside_is_answered_by_the_pods_interface(world: World) -> None:
    """A load balancer that keeps the client's address asks like that."""
    for pod in world.pods:
        for source in (OUTSIDE, IN_VPC, IN_SECOND):
            assert await world.ask_pod(source, pod) == str(source)


async def test_external_translation_leaves_everything_to_the_pods_interface(world: World) -> None:
    await world.node.node.apply(replace(STATE, external_snat=True))
    for pod in world.pods:
        assert await world.exchange(pod, OUTSIDE) == str(pod)
    await world.node.node.apply(STATE)
    for pod in world.pods:
        assert await world.exchange(pod, OUTSIDE) == str(PRIMARIES[0])


async def test_a_third_cidr_under_traffic(world: World) -> None:
    """A connection that is translated goes on, a new one is not translated."""

    def connect() -> tuple[socket.socket, socket.socket]:
        listener, client = world.node.vpc.socket(IN_THIRD), world.pods[POD_1].socket(IN_THIRD)
        with listener:
            listener.bind((str(IN_THIRD), 0))
            listener.listen()
            client.connect((str(IN_THIRD), listener.getsockname()[1]))
            server, peer = listener.accept()
        server.settimeout(_SECONDS)
        assert peer[0] == str(PRIMARIES[0])
        return client, server

    def talk(client: socket.socket, server: socket.socket, times: int) -> None:
        for _ in range(times):
            client.sendall(b"?")
            assert server.recv(1) == b"?"
            server.sendall(b"!")
            assert client.recv(1) == b"!"

    client, server = await asyncio.to_thread(connect)
    with client, server:
        talking = asyncio.create_task(asyncio.to_thread(talk, client, server, 2000))
        await world.node.node.apply(replace(STATE, inside=STATE.inside | {THIRD_CIDR}))
        assert await world.exchange(POD_1, IN_THIRD) == str(POD_1)
        await talking
        await asyncio.to_thread(talk, client, server, 3)
    assert await world.exchange(POD_2, IN_SECOND) == str(POD_2)
    await world.node.node.apply(STATE)
    assert await world.exchange(POD_1, IN_THIRD) == str(PRIMARIES[0])


def connect(
    server: Netns, inside: IPv4Address, client: Netns, source: IPv4Address, asked: IPv4Address, port: int
) -> str:
    """Whom the server, which listens at `inside` and port 80, saw when the client connected to that port there."""
    with server.socket(inside) as listener, client.socket(source) as asking:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(inside), 80))
        listener.listen()
        listener.settimeout(_SECONDS)
        asking.bind((str(source), 0))
        asking.connect((str(asked), port))
        accepted, peer = listener.accept()
        with accepted:
            accepted.sendall(b"!")
            assert asking.recv(1) == b"!"
        return str(peer[0])


@pytest.mark.parametrize("asked", PRIMARIES)
async def test_a_nodeport_is_answered_where_it_was_asked(world: World, asked: IPv4Address) -> None:
    """At the address of any interface, whichever interface the pod behind it has, and with the client's address."""
    node = world.node
    nft(node.netns, "add table ip services\nadd chain ip services nat { type nat hook prerouting priority dstnat; }")
    for port, pod in enumerate(world.pods, 30_000):
        nft(node.netns, f"add rule ip services nat fib daddr type local tcp dport {port} dnat to {pod}:80")
    for port, pod in enumerate(world.pods, 30_000):
        for source in (OUTSIDE, IN_VPC):
            seen = await asyncio.to_thread(connect, world.pods[pod], pod, node.vpc, source, asked, port)
            assert seen == str(source)


@pytest.mark.parametrize("asked", PRIMARIES)
async def test_a_nodeport_that_leads_to_the_node_or_to_another_one(world: World, asked: IPv4Address) -> None:
    """To a process of the node at its primary address, and masqueraded to a pod elsewhere in the VPC."""
    node, far = world.node, IN_SECOND
    nft(node.netns, "add table ip services\nadd chain ip services nat { type nat hook prerouting priority dstnat; }")
    nft(node.netns, f"add rule ip services nat ip daddr {asked} tcp dport 30000 dnat to {PRIMARIES[0]}:80")
    nft(node.netns, f"add rule ip services nat ip daddr {asked} tcp dport 30001 dnat to {far}:80")
    nft(node.netns, "add chain ip services leave { type nat hook postrouting priority 90; }")
    nft(node.netns, f"add rule ip services leave ip daddr {far} masquerade")
    for source in (OUTSIDE, IN_VPC):
        seen = await asyncio.to_thread(connect, node.netns, PRIMARIES[0], node.vpc, source, asked, 30_000)
        assert seen == str(source)
        seen = await asyncio.to_thread(connect, node.vpc, far, node.vpc, source, asked, 30_001)
        assert seen == str(PRIMARIES[0])


async def test_that_a_pod_is_asked_changes_nothing_of_what_it_asks(world: World) -> None:
    """Of the same host, at the same time."""
    for pod in world.pods:
        assert await world.ask_pod(OUTSIDE, pod) == str(OUTSIDE)
        assert await world.exchange(pod, OUTSIDE) == str(PRIMARIES[0])
        assert await world.ask_pod(OUTSIDE, pod) == str(OUTSIDE)
        assert await world.exchange(pod, IN_VPC) == str(pod)


async def test_a_services_address_is_outside_and_its_pods_are_not(world: World) -> None:
    node = world.node.netns
    nft(node, "add table ip services\nadd chain ip services nat { type nat hook prerouting priority dstnat; }")
    nft(node, f"add rule ip services nat ip daddr 10.100.0.1 dnat to {IN_VPC}")

    def ask(pod: IPv4Address) -> str:
        with world.node.vpc.socket(IN_VPC) as listener, world.pods[pod].socket(IN_VPC) as asking:
            listener.bind((str(IN_VPC), 0))
            listener.listen()
            asking.connect(("10.100.0.1", listener.getsockname()[1]))
            accepted, peer = listener.accept()
            accepted.close()
            return str(peer[0])

    for pod in world.pods:
        assert await asyncio.to_thread(ask, pod) == str(pod)


async def test_what_others_masquerade_has_the_address_of_the_interface(world: World) -> None:
    node = world.node.netns
    nft(node, "add table ip other\nadd chain ip other nat { type nat hook postrouting priority 90; }")
    nft(node, f"add rule ip other nat ip daddr {IN_VPC} masquerade")
    for device, pod in enumerate(world.pods):
        assert await world.exchange(pod, IN_VPC) == str(PRIMARIES[device])


async def test_other_bits_of_marks_stay(world: World) -> None:
    node = world.node.netns
    nft(node, "add table ip other\nadd counter ip other right")
    nft(node, "add chain ip other before { type filter hook prerouting priority -160; }")
    nft(node, f"add rule ip other before ip saddr {POD_1} meta mark set 0x4001")
    nft(node, f"add rule ip other before ip saddr {POD_1} ct state new ct mark set 0x26001100")
    nft(node, "add chain ip other after { type filter hook postrouting priority 300; }")
    nft(node, "add rule ip other after ct mark 0x26001180 meta mark 0x4081 ip daddr 198.51.100.7 counter name right")
    nft(node, "add rule ip other after ct mark 0x26001100 meta mark 0x4001 ip daddr 10.1.200.5 counter name right")
    assert await world.exchange(POD_1, OUTSIDE) == str(PRIMARIES[0])
    assert await world.exchange(POD_1, IN_VPC) == str(POD_1)
    [counter] = [entry["counter"] for entry in listed(node, "counter", "ip", "other", "right") if "counter" in entry]
    assert counter["packets"] > 6


async def test_the_metadata_service_is_for_the_node(world: World) -> None:
    node = world.node
    assert await asyncio.to_thread(exchange, node.netns, node.vpc, METADATA) == str(PRIMARIES[0])

    def knock(pod: IPv4Address) -> None:
        with world.pods[pod].call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asking:
            asking.sendto(b"?", (str(METADATA), 80))

    for number, pod in enumerate(world.pods, 1):
        await asyncio.to_thread(knock, pod)
        assert counted(node.netns, "coil-eni", "metadata") == number
    await node.node.apply(replace(STATE, metadata_access=True))
    assert await world.exchange(POD_1, METADATA) == str(PRIMARIES[0])
    assert counted(node.netns, "coil-eni", "metadata") == 3


async def test_no_translation_leads_a_pod_to_the_metadata_service(world: World) -> None:
    """A Service whose endpoint it is, at an address of its own and at a port of the node."""
    node = world.node.netns
    nft(node, "add table ip services\nadd chain ip services nat { type nat hook prerouting priority dstnat; }")
    nft(node, f"add rule ip services nat ip daddr 10.100.0.1 udp dport 80 dnat to {METADATA}")
    nft(node, f"add rule ip services nat fib daddr type local udp dport 30000 dnat to {METADATA}:80")

    def ask(pod: IPv4Address, destination: str, port: int) -> None:
        with world.pods[pod].call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asking:
            asking.sendto(b"?", (destination, port))

    for number, pod in enumerate(world.pods, 1):
        await asyncio.to_thread(ask, pod, "10.100.0.1", 80)
        await asyncio.to_thread(ask, pod, str(PRIMARIES[0]), 30_000)
        assert counted(node, "coil-eni", "metadata") == 2 * number


# --- pods


async def test_an_add_changes_nothing_but_its_own_rule(world: World, new_netns: Callable[[], Netns]) -> None:
    node = world.node.netns
    before, table = rules(node), listed(node, "ruleset")
    await world.node.attach(new_netns(), POD_1B)
    assert rules(node) == [*before, (1536, str(POD_1B), "", "10001")]
    assert listed(node, "ruleset") == table
    await world.node.detach(POD_1B)
    assert rules(node) == before
    await world.node.attach(new_netns(), POD_0 + 1)
    assert rules(node) == before


async def test_a_pod_that_cannot_be_made_leaves_no_rule(world: World, new_netns: Callable[[], Netns]) -> None:
    gone = new_netns()
    gone.delete()
    before = rules(world.node.netns)
    with pytest.raises(NetlinkError):
        await world.node.attach(gone, POD_1B)
    assert rules(world.node.netns) == before


async def test_an_address_of_no_interface_is_refused(world: World, new_netns: Callable[[], Netns]) -> None:
    with pytest.raises(NetlinkError, match="no interface of this node has the address"):
        await world.node.attach(new_netns(), IPv4Address("10.1.99.9"))
    with pytest.raises(NetlinkError, match="not made for the interface eni-9"):
        await world.node.node.add_pod(IPv4Address("10.1.99.9"), InterfaceId("eni-9"))


async def test_check_names_the_rule(bare: EniNode, new_netns: Callable[[], Netns]) -> None:
    """Nobody watches here."""
    await bare.wiring.prepare()
    await bare.node.apply(STATE)
    await bare.node.adopt({})
    pod = new_netns()
    await bare.attach(pod, POD_1)
    attachment = bare.attachments[POD_1]
    plan = bare.wiring.plan(attachment)
    await bare.wiring.check(attachment, plan, pod.path)
    bare.netns.ip("rule", "delete", "from", str(POD_1))
    with pytest.raises(PodCheckError, match=r"from 10\.1\.1\.33"):
        await bare.wiring.check(attachment, plan, pod.path)


async def test_what_an_earlier_process_made_is_taken_over(world: World) -> None:
    """The rules of its pods stay until it is known which pods there are."""
    before = rules(world.node.netns)
    world.node.netns.ip(*["rule", "add", "from", "10.1.1.47", "lookup", "10001", "priority", "1536", "protocol", "30"])
    async with HearingKernel(world.node.netns) as kernel:
        later = EniNode(world.node.vpc, world.node.netns, kernel, world.node.network, [])
        await later.node.apply(STATE)
        assert set(before) <= set(rules(world.node.netns))
        await later.node.adopt({address: _interface(address) for address in world.pods})
        assert rules(world.node.netns) == before


async def test_what_an_earlier_process_made_stays_while_nobody_knows_the_interfaces(world: World) -> None:
    """The pods go on as before, though all that is known is which interface is the primary one."""

    def made() -> tuple[object, object]:
        return rules(world.node.netns), world.node.netns.read("route", "show", "table", "10001")

    before = made()
    guess = replace(STATE, interfaces=STATE.interfaces[:1], complete=False)
    async with HearingKernel(world.node.netns) as kernel:
        later = EniNode(world.node.vpc, world.node.netns, kernel, world.node.network, [])
        await later.node.apply(guess)
        await later.node.adopt({}, unplaced=world.pods)
        assert made() == before
        await later.node.apply(STATE)
        assert made() == before


def _interface(address: IPv4Address) -> InterfaceId:
    interface = interface_of(address)
    assert interface is not None
    return interface


# --- interfaces that come and go


async def test_a_link_is_awaited(world: World) -> None:
    """It goes, and comes back later with another name, as after an attachment that takes its time."""
    node = world.node
    node.node.links_changed.clear()
    node.netns.ip("link", "delete", LINKS[2])
    async with asyncio.timeout(_SECONDS):
        await node.node.links_changed.wait()
    assert await node.node.apply(STATE) == ALL - {attached(2).interface.id}
    node.node.links_changed.clear()
    attach_link(node.vpc, node.netns, 2)
    node.netns.ip("link", "set", LINKS[2], "name", "late0")
    async with asyncio.timeout(_SECONDS):
        while await node.node.apply(STATE) != ALL:
            await node.node.links_changed.wait()
            node.node.links_changed.clear()
    assert await world.exchange(POD_2, IN_VPC) == str(POD_2)
    assert await world.exchange(POD_2, OUTSIDE) == str(PRIMARIES[0])


async def test_what_a_pod_sends_by_a_link_that_is_down_leaves_by_no_other(bare: EniNode) -> None:
    """Nobody watches here. The router would count what comes by another interface."""
    await bare.wiring.prepare()
    await bare.node.apply(STATE)
    await bare.node.adopt({})
    [pod, *_] = bare.pods
    await bare.attach(pod, POD_1)
    bare.netns.ip("link", "set", LINKS[1], "down")
    with pod.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as asking:
        asking.settimeout(_SECONDS)
        with pytest.raises(OSError, match="No route to host"):
            await asyncio.to_thread(asking.connect, (str(IN_VPC), 80))
    assert bare.spoofed() == 0


async def test_an_interface_that_is_given_back_leaves_nothing(world: World) -> None:
    node = world.node
    await node.detach(POD_2)
    assert await node.node.apply(NodeState(interfaces=STATE.interfaces[:2], inside=STATE.inside)) == ALL - {
        attached(2).interface.id
    }
    assert routes(node.netns, 10_002) == []
    assert "10002" not in {table for *_, table in rules(node.netns)}


async def test_of_links_with_one_hardware_address_the_device_counts(bare: EniNode) -> None:
    bare.netns.ip("link", "add", "upper", "type", "bridge")
    bare.netns.ip("link", "set", "upper", "address", attached(1).interface.mac)
    await bare.node.apply(STATE)
    assert {device for *_, device in routes(bare.netns, 10_001)} == {LINKS[1], "unreachable"}


# --- what others change


def seen(node: EniNode) -> dict[str, Any]:
    """All that the node has of it; counters and indices left out."""
    netns = node.netns
    found: dict[str, Any] = {
        "rules": [netns.read(family, "rule") for family in ("-4", "-6")],
        "routes": [netns.read("route", "show", "table", str(table)) for table in (116, 10_001, 10_002)],
        "links": [
            (link["ifname"], link["mtu"], "UP" in link["flags"], sorted(each["local"] for each in link["addr_info"]))
            for link in netns.read("-4", "address")
            if link["ifname"] in LINKS
        ],
        "table": [
            {kind: {key: content[key] for key in content if key not in ("handle", "packets", "bytes")}}
            for entry in listed(netns, "ruleset")
            for kind, content in entry.items()
        ],
    }
    found["rules"] = [sorted(map(str, family)) for family in found["rules"]]
    return found


async def mended(world: World, change: Callable[[], object]) -> None:
    """The change is one, and nothing of it is left a moment later."""
    before = seen(world.node)
    change()
    assert seen(world.node) != before
    await asyncio.to_thread(
        partial(wait_until, lambda: seen(world.node) == before, what="the node as it was", timeout=_MEND_SECONDS)
    )


@pytest.mark.parametrize(
    "command",
    [
        "rule delete from 10.1.1.33",
        "rule delete priority 1024",
        "rule delete priority 1025",
        "rule delete priority 512",
        "rule delete from 10.1.1.10",
        "-6 rule delete priority 512",
        "route delete default table 10001",
        "route delete 10.1.0.1 table 10001",
        "route replace blackhole default table 10001",
        "route flush table 10002",
        "route delete unreachable default table 10001 metric 4294967295",
        "route delete 10.1.1.33 table 116",
        "route flush table 116",
        "address delete 10.1.1.10/32 dev ens6",
        "link set ens6 down",
        "link set ens6 mtu 1300",
        "link set ens7 mtu 1500",
    ],
)
async def test_what_others_delete_or_change_is_mended(world: World, command: str) -> None:
    await mended(world, lambda: world.node.netns.ip(*command.split()))
    for pod in world.pods:
        assert await world.exchange(pod, OUTSIDE) == str(PRIMARIES[0])
        assert await world.exchange(pod, IN_VPC) == str(pod)


@pytest.mark.parametrize(
    "command",
    [
        "delete table inet coil-eni",
        "flush ruleset",
        "flush chain inet coil-eni translate",
        "flush set inet coil-eni pods4",
        "add element inet coil-eni inside4 { 198.51.100.0/24 }",
    ],
)
async def test_the_table_is_mended(world: World, command: str) -> None:
    await mended(world, lambda: nft(world.node.netns, command))
    for pod in world.pods:
        assert await world.exchange(pod, OUTSIDE) == str(PRIMARIES[0])


async def test_before_the_node_forwards_it_keeps_the_default_route_that_a_router_advertises(bare: EniNode) -> None:
    netns = bare.netns

    def settings() -> list[str]:
        return [netns.sysctl(f"net/ipv6/conf/{name}/accept_ra") for name in ("all", "default", *LINKS)]

    netns.ip_batch([f"link set {link} up" for link in LINKS])
    await bare.node.prepare()
    assert settings() == ["1"] * 5, "no router has said anything"
    for link, metric in ((LINKS[1], 2000), (LINKS[0], 1024), (LINKS[2], 1025)):
        netns.ip("-6", "route", "add", "default", "via", "fe80::1", "dev", link, "proto", "ra", "metric", str(metric))
    netns.ip("-6", "route", "add", "default", "via", "fe80::2", "dev", LINKS[2], "metric", "1")
    await bare.node.prepare()
    assert settings() == ["1", "1", "2", "1", "1"]
    netns.set_sysctl(f"net/ipv6/conf/{LINKS[0]}/accept_ra", "0")
    await bare.node.prepare()
    await bare.node.apply(STATE)
    assert settings() == ["1", "1", "0", "1", "1"], "somebody else listens to routers"


async def test_without_a_route_the_primary_interface_listens_to_routers_as_soon_as_it_is_known(bare: EniNode) -> None:
    await bare.wiring.prepare()
    await bare.node.apply(STATE)
    assert [bare.netns.sysctl(f"net/ipv6/conf/{link}/accept_ra") for link in LINKS] == ["2", "1", "1"]


@pytest.mark.parametrize("link", [*LINKS, "all"])
async def test_a_reverse_path_filter_that_others_make_strict_is_mended(world: World, link: str) -> None:
    netns = world.node.netns
    own = "ens5" if link == "all" else link
    loose = partial(wait_until, lambda: netns.sysctl(f"net/ipv4/conf/{own}/rp_filter") == "2", what="the loose filter")
    for _ in range(2):  # the first may be found by the comparison that the watch begins with
        if link == "all":
            for name in ("all", own):
                netns.set_sysctl(f"net/ipv4/conf/{name}/rp_filter", "0")
        netns.set_sysctl(f"net/ipv4/conf/{link}/rp_filter", "1")
        await asyncio.to_thread(partial(loose, timeout=_MEND_SECONDS))


@pytest.mark.parametrize("device", range(3))
async def test_a_link_that_is_renamed_goes_on(world: World, device: int) -> None:
    node = world.node.netns
    node.ip("link", "set", LINKS[device], "name", "renamed0")
    if device == 0:
        wait = partial(wait_until, lambda: "renamed0" in str(listed(node, "ruleset")), what="the new name in the table")
        await asyncio.to_thread(partial(wait, timeout=_SECONDS))
    for pod in world.pods:
        assert await world.exchange(pod, OUTSIDE) == str(PRIMARIES[0])
        assert await world.exchange(pod, IN_VPC) == str(pod)
    assert await world.node.node.apply(STATE) == ALL


async def test_a_pods_neighbour_is_mended(world: World) -> None:
    pod = world.pods[POD_1]

    def neighbours() -> list[dict[str, Any]]:
        return pod.read("neighbour", "show", "nud", "permanent")

    before = neighbours()
    assert [entry["dst"] for entry in before] == ["169.254.1.1"]
    pod.ip("neighbour", "delete", "169.254.1.1", "dev", "eth0")
    await asyncio.to_thread(partial(wait_until, lambda: neighbours() == before, what="the neighbour", timeout=_SECONDS))


async def test_what_belongs_to_others_stays(world: World) -> None:
    node = world.node.netns
    for words in (
        "rule add from 10.1.1.99 lookup 10001 priority 1536 protocol 4",
        "rule add from 10.1.1.98 lookup 10001 priority 1600 protocol 30",
        "rule add fwmark 0x100/0x100 lookup 200 priority 1100 protocol 30",
        "route add 192.0.2.0/24 dev ens6 table 10001 protocol 4",
        "route add 192.0.2.0/24 dev ens6 table 200 protocol 30",
        "address add 192.0.2.9/32 dev ens6",
    ):
        node.ip(*words.split())
    nft(node, "add table inet other\nadd chain inet other c")
    before = seen(world.node), routes(node, 200), node.read("address")
    await world.node.node.apply(replace(STATE, external_snat=True))
    await world.node.node.apply(STATE)
    assert (seen(world.node), routes(node, 200), node.read("address")) == before


async def test_a_rule_of_ours_that_nobody_wants_goes(world: World) -> None:
    words = "rule add from 10.1.1.99 lookup 10001 priority 1536 protocol 30"
    await mended(world, lambda: world.node.netns.ip(*words.split()))
