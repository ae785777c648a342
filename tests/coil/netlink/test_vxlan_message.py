"""VXLAN links, read by pyroute2."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from coil.kernel.family import IPAddress
from coil.kernel.link import LinkName, MacAddress
from coil.kernel.vxlan import Vxlan, VxlanState
from coil.netlink.link import new_virtual_link, parse_link, set_mac, set_mtu
from coil.netlink.vxlan import new_vxlan, parse_vxlan, set_vxlan
from coil.netlink.wire import attribute_be16, attribute_u8, attribute_u32
from tests.coil.netlink.oracle import read

MAC = MacAddress("0a:00:00:00:00:01")


def vxlan(local: IPAddress) -> Vxlan:
    return Vxlan(
        name=LinkName("egress.vxlan"),
        vni=100,
        port=7789,
        mac=MAC,
        mtu=1450,
        local=local,
        parent=LinkName("eth0"),
    )


@pytest.mark.parametrize(
    ("local", "attribute"), [(IPv4Address("10.0.0.1"), "vxlan_local"), (IPv6Address("fd00::1"), "vxlan_local6")]
)
def test_a_link(local: IPAddress, attribute: str) -> None:
    request = new_vxlan(vxlan(local))
    message = read(ifinfmsg, request)
    assert (message.get("ifname"), message.get("mtu")) == ("egress.vxlan", 1450)
    assert message.get(("linkinfo", "kind")) == "vxlan"
    data = message.get(("linkinfo", "data"))
    assert (data.get("vxlan_id"), data.get("vxlan_port"), data.get("vxlan_learning")) == (100, 7789, 0)
    assert data.get(attribute) == str(local)
    assert parse_vxlan(request.body, parse_link(request.body)) == VxlanState(
        vni=100, port=7789, local=local, learning=False, plain=True
    )


def test_a_change_names_neither_identifier_nor_port() -> None:
    data = read(ifinfmsg, set_vxlan(vxlan(IPv4Address("10.0.0.2")))).get(("linkinfo", "data"))
    assert dict(data["attrs"]) == {"IFLA_VXLAN_LOCAL": "10.0.0.2", "IFLA_VXLAN_LEARNING": 0}
    assert set_vxlan(vxlan(IPv4Address("10.0.0.2"))).flags == 0


@pytest.mark.parametrize(
    ("extra", "plain", "bound"),
    [
        (b"", True, False),
        (attribute_u8(25, 0), True, False),  # IFLA_VXLAN_COLLECT_METADATA
        (attribute_u8(25, 1), False, False),
        (attribute_u32(2, 0xEF000001), False, False),  # IFLA_VXLAN_GROUP
        (attribute_u32(3, 7), False, True),  # IFLA_VXLAN_LINK
    ],
)
def test_a_link_that_does_more_is_not_plain(extra: bytes, plain: bool, bound: bool) -> None:
    data = attribute_u32(1, 5) + attribute_be16(15, 4789) + attribute_u8(7, 1) + extra
    body = new_virtual_link(LinkName("v"), "vxlan", data, mtu=0).body
    state = parse_vxlan(body, parse_link(body))
    assert state == VxlanState(vni=5, port=4789, local=None, learning=True, plain=plain, bound=bound)


def test_a_link_of_another_kind_is_none() -> None:
    body = new_virtual_link(LinkName("v"), "bridge", b"", mtu=0).body
    assert parse_vxlan(body, parse_link(body)) is None
    body = new_vxlan(vxlan(IPv4Address("10.0.0.1"))).body
    assert parse_vxlan(body, replace(parse_link(body), kind="")) is None


def test_changes_of_a_link() -> None:
    mac = read(ifinfmsg, set_mac(7, MAC))
    assert (mac["index"], mac["change"], mac.get("address")) == (7, 0, MAC)
    mtu = read(ifinfmsg, set_mtu(7, 1430))
    assert (mtu["index"], mtu["change"], mtu.get("mtu")) == (7, 0, 1430)
