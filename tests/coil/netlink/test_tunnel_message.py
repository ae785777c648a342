"""Tunnels as written here, read by pyroute2."""

import struct
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from coil.kernel.family import Family
from coil.kernel.link import LinkName, LinkState
from coil.kernel.tunnel import Tunnel, catch_all, tunnel_name
from coil.netlink.link import new_virtual_link, parse_link
from coil.netlink.tunnel import new_catch_all, new_tunnel, parse_tunnel, set_tunnel
from tests.coil.netlink.oracle import read


def tunnel(local: str, remote: str, source_port: int) -> Tunnel:
    peer = ip_address(remote)
    return Tunnel(
        name=tunnel_name(peer), local=ip_address(local), remote=peer, port=5555, source_port=source_port, mtu=1400
    )


TUNNELS = [
    tunnel("10.64.0.1", "10.64.0.2", 5555),
    tunnel("10.64.0.1", "10.64.0.2", 0),
    tunnel("fd64::1", "fd64::2", 5555),
    tunnel("fd64::1", "fd64::2", 0),
    replace(tunnel("fd64::1", "fd64::2", 0), encap_limit=True),
]


@pytest.mark.parametrize("wanted", TUNNELS)
@pytest.mark.parametrize(("verb", "flags"), [(new_tunnel, 0x600), (set_tunnel, 0)])
def test_a_tunnel(wanted: Tunnel, verb: Any, flags: int) -> None:
    request = verb(wanted)
    assert request.flags == flags
    message = read(ifinfmsg, request)
    assert (message["index"], message["change"]) == (0, 0)
    assert (message.get("ifname"), message.get("mtu")) == (wanted.name, 1400)
    ipv4 = wanted.family is Family.IPV4
    kind = "ipip" if ipv4 else "ip6tnl"
    assert message.get(("linkinfo", "kind")) == kind
    data = message.get(("linkinfo", "data"))
    assert (data.get(f"{kind}_local"), data.get(f"{kind}_remote")) == (str(wanted.local), str(wanted.remote))
    assert (data.get(f"{kind}_ttl"), data.get(f"{kind}_proto")) == (225, 4 if ipv4 else 41)
    assert (data.get(f"{kind}_encap_type"), data.get(f"{kind}_encap_flags")) == (1, 0)
    assert (data.get(f"{kind}_encap_sport"), data.get(f"{kind}_encap_dport")) == (wanted.source_port, 5555)
    if not ipv4:
        assert (data.get("ip6tnl_flags"), data.get("ip6tnl_encap_limit")) == (0 if wanted.encap_limit else 1, 0)
    assert parse_tunnel(request.body, parse_link(request.body)) == wanted


@pytest.mark.parametrize(("family", "kind", "protocol"), [(Family.IPV4, "ipip", 4), (Family.IPV6, "ip6tnl", 41)])
def test_a_flow_based_link(family: Family, kind: str, protocol: int) -> None:
    wanted = catch_all(family)
    request = new_catch_all(wanted)
    message = read(ifinfmsg, request)
    assert (message.get("ifname"), message.get("mtu"), request.flags) == (wanted.name, None, 0x600)
    assert message.get(("linkinfo", "kind")) == kind
    data = message.get(("linkinfo", "data"))
    assert data.get(f"{kind}_proto") == protocol
    assert data.get(f"{kind}_collect_metadata") is True
    assert parse_tunnel(request.body, parse_link(request.body)) == wanted


@pytest.mark.parametrize(
    "body",
    [
        new_virtual_link(LinkName("a"), "veth", b"", mtu=1500).body,
        new_virtual_link(LinkName("tunl0"), "ipip", b"", mtu=1480).body,
        # IFLA_IPTUN_ENCAP_TYPE: none, GUE
        new_virtual_link(LinkName("a"), "ipip", struct.pack("=HHHxx", 6, 15, 0), mtu=0).body,
        new_virtual_link(LinkName("a"), "ip6tnl", struct.pack("=HHHxx", 6, 15, 2), mtu=0).body,
    ],
)
def test_other_links_are_no_tunnels(body: bytes) -> None:
    link = parse_link(body)
    assert link.state is LinkState.DOWN
    assert parse_tunnel(body, link) is None
