"""What is written here, read by pyroute2."""

from ipaddress import IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network, ip_address
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from coil.kernel.family import Family, IPAddress, IPInterface
from coil.kernel.link import Address, LinkGroup, LinkName, MacAddress, Neighbour
from coil.kernel.route import Route, RouteScope
from coil.netlink.address import (
    delete_address,
    new_address,
    new_host_address,
    parse_address,
    parse_address_index,
)
from coil.netlink.link import (
    add_alternative_name,
    delete_group,
    delete_link,
    get_link,
    new_veth,
    parse_link,
    rename_link,
    set_alias,
    set_group,
    set_up,
)
from coil.netlink.neighbour import new_neighbour, parse_neighbour
from coil.netlink.route import (
    delete_route,
    dump_link_routes,
    get_route,
    new_route,
    parse_route,
    replace_route,
)
from tests.coil.netlink.oracle import read

ETH0, HOST = LinkName("eth0"), LinkName("veth01234567")
MAC, HOST_MAC = MacAddress("02:00:00:00:00:01"), MacAddress("02:00:00:00:00:02")
NAMES = {7: ETH0}


def test_a_veth_in_two_namespaces() -> None:
    request = new_veth(ETH0, MAC, mtu=1400, peer=HOST, peer_mac=HOST_MAC, peer_group=LinkGroup.UNFINISHED, peer_netns=5)
    message = read(ifinfmsg, request)
    assert (message.get("ifname"), message.get("address"), message.get("mtu")) == (ETH0, MAC, 1400)
    assert message.get(("linkinfo", "kind")) == "veth"
    peer = message.get(("linkinfo", "data", "veth_info_peer"))
    assert (peer.get("ifname"), peer.get("address"), peer.get("mtu")) == (HOST, HOST_MAC, 1400)
    assert (peer.get("group"), peer.get("net_ns_fd")) == (LinkGroup.UNFINISHED, 5)
    link = parse_link(request.body)
    assert (link.name, link.mac, link.mtu, link.kind) == (ETH0, MAC, 1400, "veth")


def test_changes_of_a_link() -> None:
    up = read(ifinfmsg, set_up(7))
    assert (up["index"], up["flags"], up["change"]) == (7, 1, 1)
    alias = read(ifinfmsg, set_alias(7, "COIL:default:c:eth0"))
    assert (alias["index"], alias["change"], alias.get("ifalias")) == (7, 0, "COIL:default:c:eth0")
    renamed = read(ifinfmsg, rename_link(7, HOST))
    assert (renamed["index"], renamed["change"], renamed.get("ifname")) == (7, 0, HOST)
    named = read(ifinfmsg, add_alternative_name(7, "another"))
    assert (named["index"], named["change"], named.get("ifname")) == (7, 0, None)
    assert named.get_nested("IFLA_PROP_LIST", "IFLA_ALT_IFNAME") == "another"
    group = read(ifinfmsg, set_group(HOST, LinkGroup.POD))
    assert (group["index"], group["change"], group.get("ifname"), group.get("group")) == (0, 0, HOST, LinkGroup.POD)


def test_links_are_deleted_by_name_or_by_group() -> None:
    by_name = read(ifinfmsg, delete_link(HOST))
    assert (by_name["index"], by_name.get("ifname"), by_name.get("group")) == (0, HOST, None)
    by_group = read(ifinfmsg, delete_group(LinkGroup.DOOMED))
    assert (by_group["index"], by_group.get("ifname"), by_group.get("group")) == (0, None, LinkGroup.DOOMED)
    assert read(ifinfmsg, get_link(HOST)).get("ifname") == HOST


@pytest.mark.parametrize(
    ("interface", "family", "flags", "scope"),
    [
        (IPv4Interface("10.64.0.5/32"), 2, 0x80, 0),
        (IPv4Interface("169.254.1.1/32"), 2, 0x80, 253),
        (IPv6Interface("fd02::5/128"), 10, 0x82, 0),
        (IPv6Interface("fe80::1/64"), 10, 0x82, 0),
    ],
)
def test_an_address(interface: IPInterface, family: int, flags: int, scope: int) -> None:
    address = Address(ETH0, interface)
    request = new_address(address, 7)
    message = read(ifaddrmsg, request)
    assert (message["family"], message["prefixlen"], message["index"]) == (family, interface.network.prefixlen, 7)
    assert (message["flags"], message["scope"]) == (flags, scope)
    assert message.get("address") == message.get("local") == str(interface.ip)
    assert parse_address(request.body, NAMES) == address
    assert parse_address(request.body, {}) is None


@pytest.mark.parametrize(
    ("interface", "flags"), [(IPv4Interface("10.1.0.99/32"), 0x280), (IPv6Interface("fd00::99/128"), 0x282)]
)
def test_an_address_without_a_route_to_its_network(interface: IPInterface, flags: int) -> None:
    request = new_host_address(Address(ETH0, interface), 7)
    message = read(ifaddrmsg, request)
    assert (message.get("local"), message.get("flags")) == (str(interface.ip), flags)
    assert parse_address(request.body, NAMES) == Address(ETH0, interface)
    assert parse_address_index(request.body) == 7


def test_an_address_is_deleted_with_its_prefix_length() -> None:
    message = read(ifaddrmsg, delete_address(Address(ETH0, IPv4Interface("10.1.0.1/16")), 7))
    assert (message["family"], message["prefixlen"], message["index"], message.get("local")) == (2, 16, 7, "10.1.0.1")


@pytest.mark.parametrize("gateway", [ip_address("169.254.1.1"), ip_address("fe80::1")])
def test_a_neighbour(gateway: IPAddress) -> None:
    neighbour = Neighbour(ETH0, gateway, MAC)
    request = new_neighbour(neighbour, 7)
    message = read(ndmsg, request)
    assert (message["family"], message["ifindex"], message["state"]) == (neighbour.family, 7, 0x80)
    assert (message.get("dst"), message.get("lladdr")) == (str(gateway), MAC)
    assert parse_neighbour(request.body, NAMES) == neighbour
    assert parse_neighbour(request.body, {}) is None


POD_ROUTE = Route(destination=IPv4Network("10.64.0.5/32"), device=ETH0, table=116, protocol=30, scope=RouteScope.LINK)
BIG_TABLE = Route(destination=IPv6Network("fd02::/123"), device=ETH0, table=70_000, protocol=30)
DEFAULT = Route(destination=IPv6Network("::/0"), gateway=IPv6Address("fe80::1"), device=ETH0)
ONLINK = Route(
    destination=IPv4Network("0.0.0.0/0"), gateway=ip_address("172.31.0.5"), device=ETH0, table=0x26000100, onlink=True
)
SOURCE4 = Route(
    destination=IPv4Network("0.0.0.0/0"), device=ETH0, table=118, protocol=30, source=ip_address("10.7.0.9")
)
SOURCE6 = Route(destination=IPv6Network("::/0"), device=ETH0, table=118, protocol=30, source=ip_address("fd07::9"))
NO_DEVICE = Route(destination=IPv4Network("10.64.0.0/27"), device=None, table=119, protocol=30, metric=9)


@pytest.mark.parametrize("route", [POD_ROUTE, BIG_TABLE, DEFAULT, ONLINK, SOURCE4, SOURCE6, NO_DEVICE])
@pytest.mark.parametrize("verb", [new_route, replace_route, delete_route])
def test_a_route(route: Route, verb: Any) -> None:
    request = verb(route, 7 if route.device else 0)
    message = read(rtmsg, request)
    network = route.destination
    assert (message["family"], message["dst_len"], message["type"]) == (route.family, network.prefixlen, 1)
    assert (message["proto"], message["scope"], message.get("table")) == (route.protocol, route.scope, route.table)
    assert message.get("dst") == str(network.network_address)
    assert message.get("gateway") == (str(route.gateway) if route.gateway else None)
    assert message.get("prefsrc") == (str(route.source) if route.source else None)
    assert message.get("oif") == (7 if route.device else None)
    assert message["flags"] == (4 if route.onlink else 0)
    assert message.get("priority") == (1024 if network.version == 6 else route.metric or None)
    assert parse_route(request.body, NAMES) == route


def test_a_route_over_a_link_that_is_gone_is_gone() -> None:
    assert parse_route(new_route(POD_ROUTE, 7).body, {}) is None
    assert parse_route(new_route(NO_DEVICE, 0).body, {}) == NO_DEVICE


def test_the_question_for_the_routes_over_a_link() -> None:
    message = read(rtmsg, dump_link_routes(Family.IPV6, index=7, protocol=30))
    assert (message["family"], message["proto"], message["table"], message.get("oif")) == (10, 30, 0, 7)


def test_the_question_for_a_route() -> None:
    message = read(rtmsg, get_route(ip_address("203.0.113.1")))
    assert (message["family"], message["dst_len"], message.get("dst")) == (2, 32, "203.0.113.1")


def test_a_route_is_added_only_where_there_is_none_and_replaced_in_any_case() -> None:
    create, exclusive, replace = 0x400, 0x200, 0x100  # linux/netlink.h
    assert new_route(POD_ROUTE, 7).flags == create | exclusive
    assert replace_route(POD_ROUTE, 7).flags == create | replace
