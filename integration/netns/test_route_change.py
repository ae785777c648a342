"""Routes that change: no instant without one, nobody else's touched. The oracles are `ip monitor`, `ip -json`, and
sockets, whose `connect` asks the kernel for a route.
"""

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final

import pytest

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.builtin import Node, NodeAddress, NodeStatus
from coil.crd.meta import ObjectMeta
from coil.crd.names import LABEL_NODE, NodeName
from coil.kernel.link import LinkName
from coil.kernel.route import Route, RouteChanges
from coil.netlink.error import KernelError
from coil.netlink.host import HostNetwork
from coil.podnet.block_route import NodeRoutes, RouteTrouble, plan_node_routes
from integration.netns.netns import Netns
from integration.patience import wait_until
from integration.route_monitor import watch_routes

pytestmark = pytest.mark.kernel

MAIN = 254
OURS = 31
OWN = NodeName("node-0")
UPLINK = LinkName("up0")


@pytest.fixture
def flat(host: Netns) -> Netns:
    """A node on a network of its own: 192.0.2.0/24 and 2001:db8::/64 are on the link, there is no default route."""
    host.ip("link", "add", UPLINK, "type", "veth", "peer", "name", "up1")
    for link in (UPLINK, "up1"):
        host.ip("link", "set", link, "up")
    host.ip("address", "add", "192.0.2.1/24", "dev", UPLINK)
    host.ip("address", "add", "2001:db8::1/64", "dev", UPLINK, "nodad")
    return host


def node(number: int) -> Node:
    """node-0 is this one."""
    addresses = (f"192.0.2.{number + 1}", f"2001:db8::{number + 1:x}")
    entries = tuple(NodeAddress(type="InternalIP", address=address) for address in addresses)
    return Node(metadata=ObjectMeta(name=f"node-{number}"), status=NodeStatus(addresses=entries))


def block(number: int, owner: int) -> AddressBlock:
    return AddressBlock(
        metadata=ObjectMeta(name=f"p-{number}", labels={LABEL_NODE: f"node-{owner}"}),
        index=number,
        ipv4=str(IPv4Network((0x0A400000 + number * 32, 27))),
        ipv6=str(IPv6Network(((0xFD64 << 112) + number * 32, 123))),
    )


POOL: Final = AddressPool(
    metadata=ObjectMeta(name="p"),
    spec=AddressPoolSpec(subnets=(SubnetSet(ipv4="10.64.0.0/14", ipv6="fd64::/110"),)),
)


class NodeTable:
    """The main table of node-0, kept as `coild.routes.sync` keeps it."""

    def __init__(self, network: HostNetwork, nodes: int = 4) -> None:
        self._network = network
        self._nodes = [node(number) for number in range(nodes)]
        self.planned: NodeRoutes

    async def sync(self, *blocks: AddressBlock) -> RouteChanges:
        def plan(others: list[Route]) -> Collection[Route]:
            self.planned = plan_node_routes(blocks, self._nodes, [POOL], OWN, others=others, protocol=OURS)
            return self.planned.routes

        return await self._network.sync_planned_routes(table=MAIN, protocol=OURS, plan=plan)


def entries(host: Netns, *selection: str) -> list[dict[str, Any]]:
    """The routes of the main table, both families, that `ip route show` selects."""
    return [entry for family in ("-4", "-6") for entry in host.read(family, "route", "show", *selection)]


def next_hops(host: Netns) -> dict[str, str]:
    """Our routes' destinations and gateways."""
    return {str(ip_network(entry["dst"])): entry["gateway"] for entry in entries(host, "proto", str(OURS))}


def expected(*owners: tuple[int, int]) -> dict[str, str]:
    """What `next_hops` should be, for pairs of block and node."""
    found: dict[str, str] = {}
    for number, owner in owners:
        item, (ipv4, ipv6) = block(number, owner), node(owner).status.addresses
        found |= {str(item.ipv4): ipv4.address, str(item.ipv6): ipv6.address}
    return found


@contextmanager
def asking(host: Netns, *addresses: str) -> Iterator[Callable[[], int]]:
    """Ask for the way to each address without a pause, in a thread; what is yielded tells how often so far.

    Leaving fails if there was none even once.
    """
    rounds = 0
    ending = threading.Event()
    failures: list[str] = []

    def ask() -> None:
        nonlocal rounds
        while not ending.is_set():
            for address in addresses:
                family = socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6
                with socket.socket(family, socket.SOCK_DGRAM) as probe:
                    try:
                        probe.connect((address, 9))
                    except OSError as error:
                        failures.append(f"{address}: {error}")
            rounds += 1

    asker = threading.Thread(target=lambda: host.call(ask))
    asker.start()
    try:
        yield lambda: rounds
    finally:
        ending.set()
        asker.join()
    assert failures == []
    assert rounds > 0


async def test_a_block_that_changes_hands_has_a_route_at_every_instant(network: HostNetwork, flat: Netns) -> None:
    table = NodeTable(network)
    await table.sync(block(0, 1), block(1, 2))
    inside = ["10.64.0.5", "fd64::5"]
    with watch_routes(str(flat.path)) as monitor, asking(flat, *inside) as rounds:
        for owner in (2, 3, 1, 2, 3, 1, 2, 3):
            reached = rounds()
            await asyncio.to_thread(wait_until, partial(lambda seen: rounds() > seen, reached), what="another round")
            changes = await table.sync(block(0, owner), block(1, 2))
            assert (len(changes.replaces), changes.adds, changes.deletes, changes.clears) == (2, (), (), ())
            assert next_hops(flat) == expected((0, owner), (1, 2))
        assert monitor.withdrawn() == []
        told = [event.gateway for event in monitor.events() if event.destination == "10.64.0.0/27"]
        assert told == [
            "192.0.2.3",
            "192.0.2.4",
            "192.0.2.2",
            "192.0.2.3",
            "192.0.2.4",
            "192.0.2.2",
            "192.0.2.3",
            "192.0.2.4",
        ]


async def test_a_network_that_is_united_or_divided_is_covered_at_every_instant(
    network: HostNetwork, flat: Netns
) -> None:
    def routes(*destinations: str) -> list[Route]:
        return [
            Route(
                destination=ip_network(destination),
                device=UPLINK,
                gateway=ip_address("192.0.2.2" if ":" not in destination else "2001:db8::2"),
                protocol=OURS,
            )
            for destination in destinations
        ]

    united = routes("10.64.0.0/26", "fd64::/122")
    divided = routes("10.64.0.0/27", "10.64.0.32/27", "fd64::/123", "fd64::20/123")
    await network.sync_routes(table=MAIN, protocol=OURS, wanted=united)
    with asking(flat, "10.64.0.5", "10.64.0.37", "fd64::5", "fd64::25"):
        for _ in range(10):
            for wanted in (divided, united):
                await network.sync_routes(table=MAIN, protocol=OURS, wanted=wanted)
    assert next_hops(flat).keys() == {"10.64.0.0/26", "fd64::/122"}


@pytest.mark.parametrize("protocol", ["static", "12", "kernel"])
async def test_a_route_that_somebody_else_has_stays_as_it_is(network: HostNetwork, flat: Netns, protocol: str) -> None:
    flat.ip("route", "add", "10.64.0.0/27", "via", "192.0.2.77", "proto", protocol)
    flat.ip("-6", "route", "add", "fd64::/123", "via", "2001:db8::77", "proto", protocol)
    table = NodeTable(network)
    before = entries(flat)
    for owner in (1, 2):
        await table.sync(block(0, owner), block(1, owner))
        assert [entry for entry in entries(flat) if entry.get("protocol") != str(OURS)] == before
        assert next_hops(flat) == expected((1, owner))
        assert [(entry.network, entry.trouble) for entry in table.planned.troubled] == [
            ("10.64.0.0/27", RouteTrouble.FOREIGN_ROUTE),
            ("fd64::/123", RouteTrouble.FOREIGN_ROUTE),
        ]
    await table.sync()
    assert entries(flat) == before
    # As soon as it is gone, ours comes.
    flat.ip("route", "delete", "10.64.0.0/27")
    await table.sync(block(0, 1))
    assert next_hops(flat)["10.64.0.0/27"] == "192.0.2.2"


async def test_ours_makes_way_for_a_route_that_somebody_has_put_beside_it(network: HostNetwork, flat: Netns) -> None:
    table = NodeTable(network)
    await table.sync(block(0, 1))
    flat.ip("route", "append", "10.64.0.0/27", "via", "192.0.2.77", "proto", "static")
    theirs = entries(flat, "proto", "static")
    await table.sync(block(0, 2))
    assert entries(flat, "proto", "static") == theirs
    assert next_hops(flat) == {"fd64::/123": "2001:db8::3"}
    flat.ip("route", "delete", "10.64.0.0/27", "proto", "static")
    await table.sync(block(0, 2))
    assert next_hops(flat) == expected((0, 2))


async def test_ours_and_theirs_with_another_metric_live_side_by_side(network: HostNetwork, flat: Netns) -> None:
    flat.ip("route", "add", "10.64.0.0/27", "via", "192.0.2.77", "proto", "bird", "metric", "32")
    flat.ip("-6", "route", "add", "fd64::/123", "via", "2001:db8::77", "proto", "bird", "metric", "32")
    theirs = entries(flat, "proto", "bird")
    table = NodeTable(network)
    for owner in (1, 2):
        await table.sync(block(0, owner))
        assert entries(flat, "proto", "bird") == theirs
        assert next_hops(flat) == expected((0, owner))
    assert {entry.trouble for entry in table.planned.troubled} == {RouteTrouble.FOREIGN_ROUTE}
    await table.sync()
    assert entries(flat, "proto", "bird") == theirs


async def test_whatever_of_our_protocol_is_in_the_place_of_a_route_gives_way(network: HostNetwork, flat: Netns) -> None:
    for command in (
        "route add blackhole 10.64.0.0/27 proto 31",
        "route add 10.64.0.32/27 proto 31 nexthop via 192.0.2.8 nexthop via 192.0.2.9",
        "route add 10.64.0.64/27 dev lo proto 31",
        "route add 10.64.0.96/27 via 192.0.2.8 proto 31",
        "route append 10.64.0.96/27 via 192.0.2.9 proto 31",
        "-6 route add blackhole fd64::/123 proto 31",
        "-6 route add fd64::20/123 proto 31 nexthop via 2001:db8::8 nexthop via 2001:db8::9",
        "-6 route add fd64::40/123 dev lo proto 31",
        "route add 10.99.0.0/16 via 192.0.2.9 proto 31 metric 7",
    ):
        flat.ip(*command.split())
    table = NodeTable(network)
    blocks = [block(number, 1) for number in range(4)]
    await table.sync(*blocks)
    assert next_hops(flat) == expected((0, 1), (1, 1), (2, 1), (3, 1))
    assert {entry["type"] for entry in entries(flat, "proto", str(OURS))} == {"unicast"}
    assert len(entries(flat, "proto", str(OURS))) == 8
    assert not await table.sync(*blocks)


async def test_the_links_and_their_networks_decide_who_is_a_neighbour(network: HostNetwork, flat: Netns) -> None:
    # node-2 is behind a router, node-3 on another link.
    flat.ip("route", "add", "192.0.2.3/32", "via", "192.0.2.254")
    flat.ip("-6", "route", "add", "2001:db8::3/128", "via", "2001:db8::fe")
    flat.ip("route", "add", "192.0.2.4/32", "dev", "up1", "scope", "link")
    flat.ip("-6", "route", "add", "2001:db8::4/128", "dev", "up1")
    table = NodeTable(network)
    await table.sync(block(1, 1), block(2, 2), block(3, 3))
    assert next_hops(flat) == expected((1, 1), (3, 3))
    devices = {entry["dst"]: entry["dev"] for entry in entries(flat, "proto", str(OURS))}
    assert devices == {"10.64.0.32/27": "up0", "fd64::20/123": "up0", "10.64.0.96/27": "up1", "fd64::60/123": "up1"}
    assert {(entry.block, entry.trouble) for entry in table.planned.troubled} == {("p-2", RouteTrouble.NOT_ON_LINK)}


async def test_routes_that_went_with_their_link_come_again_with_it(network: HostNetwork, flat: Netns) -> None:
    table = NodeTable(network)
    await table.sync(block(1, 1))
    flat.ip("link", "set", UPLINK, "down")
    await table.sync(block(1, 1))
    assert next_hops(flat) == {}
    assert {entry.trouble for entry in table.planned.troubled} == {RouteTrouble.NOT_ON_LINK}
    flat.ip("link", "set", UPLINK, "up")
    flat.ip("address", "replace", "2001:db8::1/64", "dev", UPLINK, "nodad")  # IPv6 loses it with the link
    await table.sync(block(1, 1))
    assert next_hops(flat) == expected((1, 1))


async def test_a_refused_replacement_leaves_the_old_route_and_stops_only_itself(
    network: HostNetwork, flat: Netns
) -> None:
    def routes(first: str, second: str) -> list[Route]:
        return [
            Route(destination=ip_network(destination), device=UPLINK, gateway=ip_address(gateway), protocol=OURS)
            for destination, gateway in (("10.64.0.0/27", first), ("10.64.0.32/27", second))
        ]

    await network.sync_routes(table=MAIN, protocol=OURS, wanted=routes("192.0.2.2", "192.0.2.3"))
    with pytest.raises(KernelError, match=r"replace route 10\.64\.0\.0/27 via 203\.0\.113\.9 .*invalid gateway"):
        await network.sync_routes(table=MAIN, protocol=OURS, wanted=routes("203.0.113.9", "192.0.2.2"))
    assert next_hops(flat) == {"10.64.0.0/27": "192.0.2.2", "10.64.0.32/27": "192.0.2.2"}


@pytest.mark.slow
async def test_ten_thousand_routes(network: HostNetwork, flat: Netns, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, blocks = 250, [block(number, 1 + number % 249) for number in range(5000)]
    table = NodeTable(network, nodes)
    took: dict[str, float] = {}
    sizes: dict[str, int] = {}
    for name, wanted in (
        ("fill", blocks),
        ("no change", blocks),
        ("one block moves", [block(0, 2), *blocks[1:]]),
        ("all blocks move", [block(number, 1 + (number + 7) % 249) for number in range(5000)]),
        ("empty", []),
    ):
        began = time.monotonic()
        changes = await table.sync(*wanted)
        took[name] = time.monotonic() - began
        sizes[name] = len(changes.replaces) + len(changes.adds) + len(changes.deletes)
        assert len(next_hops(flat)) == 2 * len(wanted)
        assert table.planned.troubled == ()
    assert sizes == {"fill": 10_000, "no change": 0, "one block moves": 2, "all blocks move": 10_000, "empty": 10_000}
    with capsys.disabled():
        print(
            "\npasses with 10 000 routes: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in took.items()),
            file=sys.stderr,
        )
