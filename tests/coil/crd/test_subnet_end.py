"""Which addresses no host has, by what nodes say of their networks, and what a gateway is told of them."""

import msgspec
import pytest

from coil.crd.builtin import Node
from coil.crd.egress_tunnel import EgressTunnel
from coil.crd.subnet_end import collect_subnet_ends, validate_assignable_ranges
from tests.coil.crd.eip_object import gateway


def node(name: str, *addresses: str) -> Node:
    entries = [{"type": "InternalIP", "address": address} for address in addresses]
    return msgspec.convert({"metadata": {"name": name}, "status": {"addresses": entries}}, Node)


def tunnel(name: str, ipv4: str = "", ipv6: str = "") -> EgressTunnel:
    parent = {"name": "eth0", "ipv4": ipv4, "ipv6": ipv6}
    return msgspec.convert({"metadata": {"name": name}, "status": {"tunnel": {"parent": parent}}}, EgressTunnel)


def ends(nodes: list[Node], tunnels: list[EgressTunnel]) -> list[str]:
    found = collect_subnet_ends(nodes, tunnels)
    return [f"{end.address}, {end.kind} of {end.owner}" for each in found.values() for end in each]


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "expected"),
    [
        ("10.6.1.7/16", "", [("10.6.0.0", "network address"), ("10.6.255.255", "broadcast address")]),
        ("10.6.1.5/30", "", [("10.6.1.4", "network address"), ("10.6.1.7", "broadcast address")]),
        # Two hosts, and one.
        ("10.6.1.7/31", "", []),
        ("10.6.1.7/32", "", []),
        ("10.6.1.7", "", []),
        # IPv6 has no broadcast; all routers of a network have its first address.
        ("", "fd00:6::7/64", [("fd00:6::", "Subnet-Router anycast address")]),
        ("", "fd00:6::7/126", [("fd00:6::4", "Subnet-Router anycast address")]),
        ("", "fd00:6::7/127", []),
        ("", "fd00:6::7/128", []),
        ("nonsense", "", []),
        ("10.6.1.7/33", "fd00:6::7/129", []),
    ],
)
def test_addresses_that_no_host_has(ipv4: str, ipv6: str, expected: list[tuple[str, str]]) -> None:
    nodes = [node("n1", "10.6.1.7", "10.6.1.5", "fd00:6::7")]
    found = collect_subnet_ends(nodes, [tunnel("n1", ipv4, ipv6)])
    assert [(str(end.address), end.kind) for each in found.values() for end in each] == expected


def test_a_node_is_believed_of_its_own_addresses_only() -> None:
    """Whoever is root there writes what is said of the network, but not for the address of another Node."""
    nodes = [node("n1", "10.6.1.7", "fd00:6::7"), node("n2", "10.7.1.7")]
    assert ends(nodes, [tunnel("n1", "10.7.1.7/16", "fd00:7::7/64"), tunnel("gone", "10.6.1.7/16")]) == []
    assert ends(nodes, [tunnel("n1", "10.6.1.7/9")]) == [
        "10.0.0.0, network address of 10.0.0.0/9, the network of the Node 'n1'",
        "10.127.255.255, broadcast address of 10.0.0.0/9, the network of the Node 'n1'",
    ], "no more than two addresses, whatever it says"


def test_of_nodes_in_one_network_the_first_is_named() -> None:
    nodes = [node("n2", "10.6.1.8"), node("n1", "10.6.1.7")]
    assert ends(nodes, [tunnel("n2", "10.6.1.8/16"), tunnel("n1", "10.6.1.7/16")]) == [
        "10.6.0.0, network address of 10.6.0.0/16, the network of the Node 'n1'",
        "10.6.255.255, broadcast address of 10.6.0.0/16, the network of the Node 'n1'",
    ]


def test_an_entry_is_told_of_the_first_of_them() -> None:
    found = collect_subnet_ends(
        [node("n1", "10.6.1.7", "fd00:6::7"), node("n2", "10.7.1.7")],
        [tunnel("n1", "10.6.1.7/16", "fd00:6::7/64"), tunnel("n2", "10.7.1.7/24")],
    )
    ranges = {
        "ipv4": [
            "10.6.0.1-10.6.255.254",
            "nonsense",
            "10.6.0.0",
            "10.6.255.0/24",
            "10.6.255.255-10.7.1.0",
            "",
            "10.7.0.0",
        ],
        "ipv6": ["fd00:6::1-fd00:6::ffff", "fd00:6::/120", "fd00:5::/64"],
    }
    of = "{}, the network of the Node {!r}"
    assert [str(error) for error in validate_assignable_ranges(gateway(ranges=ranges), found)] == [
        "spec.ranges.ipv4[2]: '10.6.0.0' has 10.6.0.0, which is the network address of "
        + of.format("10.6.0.0/16", "n1"),
        "spec.ranges.ipv4[3]: '10.6.255.0/24' has 10.6.255.255, which is the broadcast address of "
        + of.format("10.6.0.0/16", "n1"),
        "spec.ranges.ipv4[4]: '10.6.255.255-10.7.1.0' has 10.6.255.255, which is the broadcast address of "
        + of.format("10.6.0.0/16", "n1"),
        "spec.ranges.ipv6[1]: 'fd00:6::/120' has fd00:6::, which is the Subnet-Router anycast address of "
        + of.format("fd00:6::/64", "n1"),
    ]
