"""What leads from ports of a node to its pods."""

from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, Sysctl
from coil.kernel.nft_element import Elements
from coil.kernel.nft_table import DestinationNat, Lookup, Match, Member
from coil.podnet.host_port import (
    PortMapping,
    Protocol,
    describe_host_port,
    group_by_pod,
    host_ports,
    parse_own,
    plan_host_port_table,
    plan_host_ports,
    plan_loopback,
    plan_own,
    udp_ports,
)

POD = (IPv4Address("10.64.0.1"), IPv6Address("fd64::1"))


def mapping(
    host_port: int = 8080, address: str = "", *, protocol: Protocol = Protocol.TCP, container_port: int = 80
) -> PortMapping:
    return PortMapping(
        protocol=protocol,
        host_port=host_port,
        container_port=container_port,
        host_address=ip_address(address) if address else None,
    )


def words(elements: Elements) -> dict[str, dict[Any, Any]]:
    return {name.name: dict(found) for name, found in elements.items()}


def test_every_address_of_the_node() -> None:
    assert words(plan_host_ports(POD, [mapping()])) == {
        "address4": {("tcp", "8080"): "10.64.0.1"},
        "port4": {("tcp", "8080"): "80"},
        "hairpin4": {("10.64.0.1", "10.64.0.1"): None},
        "address6": {("tcp", "8080"): "fd64::1"},
        "port6": {("tcp", "8080"): "80"},
        "hairpin6": {("fd64::1", "fd64::1"): None},
    }


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("0.0.0.0", {"address4", "port4", "hairpin4"}),
        ("::", {"address6", "port6", "hairpin6"}),
        ("192.0.2.1", {"bound_address4", "bound_port4", "hairpin4"}),
        ("2001:db8::1", {"bound_address6", "bound_port6", "hairpin6"}),
    ],
)
def test_an_address_decides_the_family(address: str, names: set[str]) -> None:
    assert set(words(plan_host_ports(POD, [mapping(address=address)]))) == names


def test_a_family_that_the_pod_does_not_have() -> None:
    assert plan_host_ports(POD[:1], [mapping(address="2001:db8::1"), mapping(address="::")]) == {}
    assert plan_host_ports(POD, []) == {}


@pytest.mark.parametrize(
    ("address", "opened"),
    [("", True), ("0.0.0.0", True), ("127.0.0.1", True), ("192.0.2.1", False), ("::", False), ("::1", False)],
)
def test_the_loopback_is_opened_only_where_a_port_is_on_it(address: str, opened: bool) -> None:
    sysctls = plan_loopback(LinkName("veth1"), plan_host_ports(POD, [mapping(address=address)]))
    assert sysctls == ((Sysctl("net/ipv4/conf/veth1/route_localnet", "1"),) if opened else ())


def test_in_words() -> None:
    assert [describe_host_port(key) for _, key, _ in host_ports(plan_host_ports(POD, [mapping()]))] == ["8080/TCP"] * 2
    [(_, key, pod)] = host_ports(plan_host_ports(POD, [mapping(53, "192.0.2.1", protocol=Protocol.UDP)]))
    assert (describe_host_port(key), pod) == ("53/UDP at 192.0.2.1", POD[0])
    assert str(mapping(53, "192.0.2.1", protocol=Protocol.UDP)) == "53/UDP at 192.0.2.1"


def test_udp_is_told_apart() -> None:
    mappings = [mapping(), mapping(53, "192.0.2.1", protocol=Protocol.UDP), mapping(54, protocol=Protocol.UDP)]
    assert udp_ports(plan_host_ports(POD, mappings)) == {POD[0]: {53, 54}, POD[1]: {54}}


addresses = st.one_of(st.none(), st.ip_addresses())
mappings_ = st.lists(
    st.builds(
        PortMapping,
        protocol=st.sampled_from(Protocol),
        host_port=st.integers(1, 65535),
        container_port=st.integers(1, 65535),
        host_address=addresses,
    ),
    max_size=4,
)
pods = st.lists(st.ip_addresses(), unique_by=Family.of, max_size=2)


@given(addresses=pods, mappings=mappings_)
def test_what_is_read_back_is_what_was_planned(addresses: list[IPAddress], mappings: list[PortMapping]) -> None:
    planned = plan_host_ports(addresses, mappings)
    merged: dict[Any, dict[Any, Any]] = {}
    by_pod = group_by_pod(planned)
    assert set(by_pod) <= set(addresses)
    for found in by_pod.values():
        for name, entries in found.items():
            merged.setdefault(name, {}).update(entries)
    assert merged == planned


def test_half_of_a_mapping_leads_nowhere() -> None:
    planned = plan_host_ports(POD[:1], [mapping()])
    for half in ("address4", "port4"):
        assert group_by_pod({name: found for name, found in planned.items() if name.name != half}) == {}


def test_every_set_that_the_rules_name_is_in_the_table() -> None:
    table = plan_host_port_table()
    named = {name for chain in table.chains for rule in chain.rules for entry in rule for name in _sets(entry)}
    assert named == {entry.name for entry in table.sets}
    own = plan_own([ip_network("192.0.2.0/24"), ip_network("::2")])
    pods = plan_host_ports(POD, [mapping(), mapping(1, "192.0.2.1"), mapping(1, "::2")])
    assert {name.name for name in {**own, **pods}} == named


@pytest.mark.parametrize(
    ("networks", "words4"),
    [
        (("192.0.2.7", "2001:db8::7"), {"192.0.2.7"}),
        (("192.0.2.7", "192.0.2.0/24"), {"192.0.2.0/24"}),
        (("2001:db8::7",), set()),
        ((), set()),
    ],
)
def test_the_nodes_own_addresses(networks: tuple[str, ...], words4: set[str]) -> None:
    elements = plan_own(map(ip_network, networks))
    assert {*words(elements).get("own4", {})} == words4
    assert plan_own(parse_own(elements)) == elements


def test_own_addresses_are_read_as_the_kernel_lists_them() -> None:
    """Ranges that touch each other are listed as one."""
    [name] = plan_own([ip_network("192.0.2.1")])
    listed: Elements = {name: {"192.0.2.1-192.0.2.3": None}}
    assert parse_own(listed) == {ip_network("192.0.2.1"), ip_network("192.0.2.2/31")}


def _sets(statement: object) -> Collection[str]:
    match statement:
        case DestinationNat(_, Lookup(_, address), Lookup(_, port)):
            return {address, port}
        case Match(_, _, Member(name)):
            return {name}
    return ()
