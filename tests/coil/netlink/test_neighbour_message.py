"""Neighbours, proxy entries and forwarding entries, read by pyroute2."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from pyroute2.netlink.rtnl.ndmsg import ndmsg

from coil.kernel.family import Family
from coil.kernel.link import LinkName, MacAddress, Neighbour, NeighbourProxy
from coil.kernel.vxlan import ForwardingEntry
from coil.netlink.neighbour import (
    delete_forwarding,
    delete_neighbour,
    delete_proxy,
    dump_forwarding,
    dump_neighbours,
    dump_proxies,
    parse_forwarding,
    parse_neighbour,
    parse_proxy,
    put_forwarding,
    put_neighbour,
    put_proxy,
)
from tests.coil.netlink.oracle import read

NAME, MAC = LinkName("egress.vxlan"), MacAddress("0a:00:00:00:00:05")
NAMES = {7: NAME}
CREATE, REPLACE = 0x400, 0x100  # linux/netlink.h


@pytest.mark.parametrize("remote", [ip_address("10.0.0.5"), ip_address("fd00::5")])
def test_a_forwarding_entry(remote: IPv4Address | IPv6Address) -> None:
    entry = ForwardingEntry(NAME, MAC, remote)
    request = put_forwarding(entry, 7)
    message = read(ndmsg, request)
    assert (message["family"], message["ifindex"], message["state"], message["flags"]) == (7, 7, 0x80, 2)
    assert (message.get("lladdr"), message.get("dst")) == (MAC, str(remote))
    assert request.flags == CREATE | REPLACE
    assert parse_forwarding(request.body, NAMES) == entry
    assert parse_forwarding(request.body, {}) is None
    gone = read(ndmsg, delete_forwarding(entry, 7))
    assert (gone["family"], gone["flags"], gone.get("lladdr"), gone.get("dst")) == (7, 2, MAC, str(remote))
    # It would go by itself.
    assert parse_forwarding(delete_forwarding(entry, 7).body, NAMES) is None


@pytest.mark.parametrize("address", [ip_address("172.31.0.5"), ip_address("fd11::5")])
def test_a_neighbour_takes_the_place_of_another(address: IPv4Address | IPv6Address) -> None:
    neighbour = Neighbour(NAME, address, MAC)
    request = put_neighbour(neighbour, 7)
    assert request.flags == CREATE | REPLACE
    assert parse_neighbour(request.body, NAMES) == neighbour
    gone = read(ndmsg, delete_neighbour(neighbour, 7))
    assert (gone["family"], gone["ifindex"], gone.get("dst")) == (neighbour.family, 7, str(address))


def test_a_proxy_entry() -> None:
    proxy = NeighbourProxy(NAME, IPv6Address("fd00::99"))
    request = put_proxy(proxy, 7, protocol=30)
    message = read(ndmsg, request)
    assert (message["family"], message["ifindex"], message["flags"]) == (10, 7, 8)
    assert (message.get("dst"), message.get("lladdr")) == ("fd00::99", None)
    assert parse_proxy(request.body, NAMES, protocol=30) == proxy
    assert parse_proxy(request.body, NAMES, protocol=31) is None
    assert parse_proxy(request.body, {}, protocol=30) is None
    gone = delete_proxy(proxy, 7)
    assert (read(ndmsg, gone)["flags"], read(ndmsg, gone).get("dst")) == (8, "fd00::99")
    assert parse_proxy(gone.body, NAMES, protocol=30) is None, "somebody else's: it is of no protocol"
    assert str(proxy) == "neighbour proxy for fd00::99 on egress.vxlan"


def test_the_questions() -> None:
    forwarding = read(ndmsg, dump_forwarding(7))
    assert (forwarding["family"], forwarding["ifindex"]) == (7, 7)
    neighbours = read(ndmsg, dump_neighbours(Family.IPV4, 7))
    assert (neighbours["family"], neighbours["ifindex"], neighbours.get("ifindex")) == (2, 0, 7)
    assert read(ndmsg, dump_proxies())["flags"] == 8
