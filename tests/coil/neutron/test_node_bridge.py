"""What a node has for a network, and which ports it refuses."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.link import LinkName, MacAddress, ParentLink, parse_link_name
from coil.neutron.handoff import Handoff, PortAddress
from coil.neutron.node_address import LINK_LOCAL, NodeAddressError, node_address
from coil.neutron.node_bridge import (
    NetworkRefusedError,
    bridge_name,
    parse_network_alias,
    plan_network,
    refuse_conflicts,
    render_network_alias,
    uplink_name,
)
from coil.neutron.resource import NetworkId, PortId, ProjectId
from coil.podnet.host_link import parse_alias

NETWORK, OTHER = NetworkId("0f6f4fd5-7f06-4c4b-8b0c-7b9d3b6a8a55"), NetworkId("5e1f5a2c-0d6b-4b7e-8d1c-2a3b4c5d6e7f")
LOCAL = ip_address("192.0.2.1")
PARENT = ParentLink(
    name=LinkName("eth0"),
    index=2,
    mac=MacAddress("02:00:00:00:00:01"),
    mtu=1500,
    interfaces=(ip_interface("192.0.2.1/24"), ip_interface("2001:db8::1/64")),
)
PORT = Handoff(
    port=PortId("a28c7404-7495-4557-b7fc-3e293508dbc6"),
    pod_uid="pod",
    mac=MacAddress("fa:16:3e:00:00:15"),
    addresses=(PortAddress(ip_interface("10.0.0.15/16")), PortAddress(ip_interface("fd00::15/64"))),
    network=NETWORK,
    project=ProjectId("9a1f5a2c0d6b4b7e8d1c2a3b4c5d6e70"),
    type="bridge",
    mtu=1450,
    segmentation=17,
)
SECOND = replace(
    PORT,
    port=PortId("a28c7404-7495-4557-b7fc-3e293508dbc7"),
    mac=MacAddress("fa:16:3e:00:00:16"),
    addresses=(PortAddress(ip_interface("10.0.0.16/16")),),
)
VETH, VETH2 = LinkName("veth1"), LinkName("veth2")


def plan(*ports: Handoff, local: str = "192.0.2.1", parent: ParentLink = PARENT) -> object:
    named = {LinkName(f"veth{number}"): port for number, port in enumerate(ports)}
    return plan_network(named, local=ip_address(local), parent=parent, udp_port=7790)


def test_the_links_of_a_network() -> None:
    planned = plan_network({VETH: PORT, VETH2: SECOND}, local=LOCAL, parent=PARENT, udp_port=7790)
    assert (planned.bridge.name, planned.uplink.name) == (bridge_name(NETWORK), uplink_name(NETWORK))
    assert (planned.bridge.mtu, planned.uplink.mtu) == (1450, 1450)
    assert (planned.uplink.vni, planned.uplink.port, planned.uplink.local) == (17, 7790, LOCAL)
    assert [port.ifname for port in planned.ports] == [VETH, VETH2]
    assert planned.addresses == {ip_interface("10.0.0.0/32"), ip_interface(LINK_LOCAL)}
    assert {route.destination for route in planned.routes} == {
        ip_network("10.0.0.15"),
        ip_network("10.0.0.16"),
        ip_network("fd00::15"),
    }
    assert {route.device for route in planned.routes} == {planned.bridge.name}
    assert {(neighbour.address, neighbour.mac) for neighbour in planned.neighbours} == {
        (ip_address("10.0.0.15"), PORT.mac),
        (ip_address("fd00::15"), PORT.mac),
        (ip_address("10.0.0.16"), SECOND.mac),
    }


@given(st.uuids(), st.uuids())
def test_names_are_valid_and_differ_as_the_networks_do(one: object, other: object) -> None:
    first, second = NetworkId(str(one)), NetworkId(str(other))
    names = [bridge_name(first), uplink_name(first)]
    assert [parse_link_name(name) for name in names] == names
    assert (bridge_name(first) == bridge_name(second)) == (first == second)
    alias = render_network_alias(first)
    assert parse_network_alias(alias) == first
    assert parse_alias(alias) is None, "taken for a pod's"


@pytest.mark.parametrize("text", ["", "COIL:", "COIL:network:", "COIL:default:0f6f:eth0", "cnb-1"])
def test_other_aliases_are_no_networks(text: str) -> None:
    assert parse_network_alias(text) is None


def test_the_mtu_that_is_left_by_the_underlay() -> None:
    plan(PORT)
    plan(replace(PORT, mtu=1430), local="2001:db8::1")
    with pytest.raises(
        NetworkRefusedError, match=r"has an MTU of 1451, .* room for 1450 .* Neutron to 1450 .* to 1501"
    ):
        plan(replace(PORT, mtu=1451))
    with pytest.raises(NetworkRefusedError, match="room for 1430 bytes"):
        plan(PORT, local="2001:db8::1")


@pytest.mark.parametrize(
    ("port", "words"),
    [
        (replace(PORT, segmentation=None), "no segmentation ID .* get_network:provider:segmentation_id"),
        (replace(PORT, segmentation=18), "different segmentation IDs: 17, 18"),
        (replace(SECOND, addresses=(PortAddress(ip_interface("10.0.0.15/31")),)), "a /30 at least"),
    ],
)
def test_networks_that_a_node_cannot_have(port: Handoff, words: str) -> None:
    with pytest.raises(NetworkRefusedError, match=words):
        plan(PORT, port)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "still plugged in at veth1"),
        ({"port": SECOND.port}, "10.0.0.15, which the port .* has on this node"),
        ({"port": SECOND.port, "network": OTHER, "segmentation": 18}, "kubelet could not tell the pods apart"),
        ({"port": SECOND.port, "addresses": SECOND.addresses}, "have the hardware address fa:16:3e:00:00:15"),
        ({"port": SECOND.port, "addresses": SECOND.addresses, "network": OTHER}, "have the segmentation ID 17"),
        ({"addresses": (PortAddress(ip_interface("192.0.2.77/24")),)}, "network of the node's link eth0"),
        ({"addresses": (PortAddress(ip_interface("2001:db8::1/64")),)}, "network of the node's link eth0"),
        ({"addresses": (PortAddress(ip_interface("fe80::5/64")),)}, "which no pod can have"),
        ({"addresses": (PortAddress(ip_interface("127.0.0.1/8")),)}, "which no pod can have"),
        ({"addresses": (PortAddress(ip_interface("224.0.0.1/8")),)}, "which no pod can have"),
    ],
)
def test_ports_that_cannot_be_beside_others(changes: dict[str, object], words: str) -> None:
    port = replace(PORT, **changes)  # type: ignore[arg-type]
    with pytest.raises(NetworkRefusedError, match=words):
        refuse_conflicts(VETH2, port, {VETH: PORT}, [PARENT])


def test_a_port_may_be_plugged_in_again_and_beside_others() -> None:
    refuse_conflicts(VETH, PORT, {VETH: PORT}, [PARENT])
    refuse_conflicts(VETH2, SECOND, {VETH: PORT}, [PARENT])
    blue = replace(SECOND, network=OTHER, segmentation=18, mac=PORT.mac)
    refuse_conflicts(VETH2, blue, {VETH: PORT}, [PARENT])


@pytest.mark.parametrize(
    ("pod", "node"),
    [
        ("10.0.0.5/16", "10.0.0.0"),
        ("10.0.0.5/30", "10.0.0.4"),
        ("fd00::5/64", "fe80::c011"),
        ("fd00::5/128", "fe80::c011"),
    ],
)
def test_the_nodes_address(pod: str, node: str) -> None:
    assert node_address(ip_interface(pod)) == ip_address(node)


@pytest.mark.parametrize("pod", ["10.0.0.5/31", "10.0.0.5/32", "10.0.0.4/30"])
def test_subnets_without_one(pod: str) -> None:
    with pytest.raises(NodeAddressError, match="/30 at least"):
        node_address(ip_interface(pod))
