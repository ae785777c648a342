"""Marks, tunnel addresses and hardware addresses: unique, lowest first, kept."""

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.egress_tunnel import EgressTunnel, EgressTunnelStatus, TunnelEnd
from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.eip.tunnel_plan import TunnelNets, TunnelSpaceError, parse_mark, plan_tunnels, render_mark, tunnel_mac

NETS = TunnelNets(ipv4=IPv4Network("172.31.0.0/16"), ipv6=IPv6Network("fd11::/112"))
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def tunnel(name: str, age: int, *, mark: str = "", ipv4: str = "", ipv6: str = "") -> EgressTunnel:
    status = EgressTunnelStatus(mark=mark, tunnel=TunnelEnd(ipv4=ipv4, ipv6=ipv6))
    return EgressTunnel(metadata=ObjectMeta(name=name, creation_timestamp=BEGIN + timedelta(age)), status=status)


def test_new_tunnels_get_the_lowest_by_age() -> None:
    planned = plan_tunnels([tunnel("b", 1), tunnel("a", 2)], NETS)
    assert {node: one.mark for node, one in planned.items()} == {"b": "0x26000100", "a": "0x26000200"}
    assert planned[NodeName("b")].end.ipv4 == "172.31.0.1"
    assert planned[NodeName("a")].end.ipv6 == "fd11::2"


def test_a_gap_is_filled_and_what_stands_stays() -> None:
    standing = tunnel("a", 1, mark="0x26000200", ipv4="172.31.0.2", ipv6="fd11::2")
    planned = plan_tunnels([standing, tunnel("b", 2)], NETS)
    assert (planned[NodeName("a")].mark, planned[NodeName("a")].end.ipv4) == ("0x26000200", "172.31.0.2")
    assert (planned[NodeName("b")].mark, planned[NodeName("b")].end.ipv4) == ("0x26000100", "172.31.0.1")


def test_of_two_with_the_same_the_older_keeps_it() -> None:
    double = {"mark": "0x26000500", "ipv4": "172.31.0.5", "ipv6": "fd11::5"}
    planned = plan_tunnels([tunnel("a", 2, **double), tunnel("b", 1, **double)], NETS)
    assert planned[NodeName("b")].mark == "0x26000500"
    assert planned[NodeName("b")].end.ipv4 == "172.31.0.5"
    assert planned[NodeName("a")].mark == "0x26000100"
    assert planned[NodeName("a")].end.ipv6 == "fd11::1"


@pytest.mark.parametrize("mark", ["0x26000000", "0x27000100", "0x26000101", "0x126000100", "26000100", "x", "0x26 00"])
def test_what_is_no_mark_of_a_node_is_replaced(mark: str) -> None:
    assert parse_mark(mark) is None
    assert plan_tunnels([tunnel("a", 1, mark=mark)], NETS)[NodeName("a")].mark == "0x26000100"


@pytest.mark.parametrize("ipv4", ["172.31.0.0", "172.31.255.255", "172.32.0.1", "fd11::1", "x"])
def test_an_address_outside_of_the_net_is_replaced(ipv4: str) -> None:
    assert plan_tunnels([tunnel("a", 1, ipv4=ipv4)], NETS)[NodeName("a")].end.ipv4 == "172.31.0.1"


def test_a_full_net_is_told() -> None:
    small = TunnelNets(ipv4=IPv4Network("172.31.0.0/30"), ipv6=None)
    both = [tunnel("a", 1), tunnel("b", 2)]
    assert {one.end.ipv4 for one in plan_tunnels(both, small).values()} == {"172.31.0.1", "172.31.0.2"}
    with pytest.raises(TunnelSpaceError, match=r"172\.31\.0\.0/30"):
        plan_tunnels([*both, tunnel("c", 3)], small)


@given(st.integers(1, 0xFFFF))
def test_marks_are_read_as_they_are_written(value: int) -> None:
    mark = parse_mark(render_mark(value))
    assert mark == 0x26000000 + value * 256
    assert mark & 0xFF000000 == 0x26000000


@given(st.text(min_size=1, max_size=20))
def test_hardware_addresses_are_local_unicast_and_stable(node: str) -> None:
    mac = tunnel_mac(NodeName(node))
    assert mac == tunnel_mac(NodeName(node)) != tunnel_mac(NodeName(node), 1)
    octets = bytes.fromhex(mac.replace(":", ""))
    assert len(octets) == 6
    assert octets[0] & 3 == 2


TUNNELS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)),
)


@given(TUNNELS)
def test_plans_are_unique_and_final(drawn: dict[str, tuple[int, int, int, int]]) -> None:
    tunnels = [
        tunnel(name, age, mark=render_mark(mark), ipv4=f"172.31.0.{ipv4}", ipv6=f"fd11::{ipv6}")
        for name, (age, mark, ipv4, ipv6) in drawn.items()
    ]
    planned = plan_tunnels(tunnels, NETS)
    assert planned.keys() == drawn.keys()
    ends = [one.end for one in planned.values()]
    for column in ([one.mark for one in planned.values()], *zip(*((e.ipv4, e.ipv6, e.mac) for e in ends), strict=True)):
        assert len(set(column)) == len(column)
    assert all(IPv4Address(end.ipv4) in IPv4Network("172.31.0.0/16") for end in ends)
    assert all(IPv6Address(end.ipv6) in IPv6Network("fd11::/112") for end in ends)
    written = [
        EgressTunnel(
            metadata=one.metadata,
            status=EgressTunnelStatus(
                mark=planned[NodeName(one.metadata.name)].mark, tunnel=planned[NodeName(one.metadata.name)].end
            ),
        )
        for one in tunnels
    ]
    assert plan_tunnels(written, NETS) == planned
    # The oldest of all keeps what is valid.
    if tunnels:
        oldest = min(tunnels, key=lambda one: (one.metadata.creation_timestamp or BEGIN, one.metadata.name))
        if parse_mark(oldest.status.mark):
            assert planned[NodeName(oldest.metadata.name)].mark == oldest.status.mark
