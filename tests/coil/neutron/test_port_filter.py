"""The tables for ports: what no port has is dropped, and the elements of each port name only what is its own."""

from ipaddress import IPv6Address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.link import LinkName, MacAddress, parse_link_name
from coil.kernel.nft_table import Comparison, Field, Match, Member, NftTable, Rule, Verdict
from coil.neutron.node_bridge import BRIDGE_PREFIX, UPLINK_PREFIX, BridgedPort
from coil.neutron.overlay_filter import plan_overlay_elements, plan_overlay_table
from coil.neutron.port_filter import (
    ADDRESSES,
    BRIDGES,
    MACS,
    PORTS,
    TARGETS,
    link_local_address,
    own_addresses,
    plan_port_elements,
    plan_port_table,
)

BRIDGE_MAC = MacAddress("02:00:00:00:00:01")


def port(number: int, *addresses: str) -> BridgedPort:
    return BridgedPort(
        ifname=LinkName(f"veth{number:08x}"),
        mac=MacAddress(f"fa:16:3e:00:00:{number:02x}"),
        addresses=tuple(map(ip_interface, addresses)),
        bridge_mac=BRIDGE_MAC,
    )


ports = st.lists(st.integers(1, 255), max_size=4, unique=True).map(
    lambda numbers: [port(number, f"10.0.0.{number}/16", f"fd00::{number:x}/64") for number in numbers]
)


def rules_of(table: NftTable, name: str) -> tuple[Rule, ...]:
    [rules] = (chain.rules for chain in table.chains if chain.name == name)
    return rules


def values(rules: tuple[Rule, ...]) -> set[object]:
    return {statement.value for rule in rules for statement in rule if isinstance(statement, Match)}


def test_the_link_local_address_of_a_host() -> None:
    # RFC 4291, appendix A, with the hardware address 34-56-78-9A-BC-DE.
    assert link_local_address(MacAddress("34:56:78:9a:bc:de")) == IPv6Address("fe80::3656:78ff:fe9a:bcde")


@pytest.mark.parametrize(
    ("addresses", "count"), [(("10.0.0.5/16",), 1), (("fd00::5/64",), 2), (("10.0.0.5/16", "fd00::5/64"), 3)]
)
def test_a_port_with_ipv6_has_a_link_local_address_as_well(addresses: tuple[str, ...], count: int) -> None:
    assert len(own_addresses(port(5, *addresses))) == count


def test_what_a_pod_sends_is_dropped_unless_it_is_the_ports() -> None:
    rules = rules_of(plan_port_table(), "from-pod")
    assert rules[-1][-1] is Verdict.DROP
    assert not [statement for statement in rules[-1] if isinstance(statement, Match)], "the drop is for all"
    accepting = [rule for rule in rules if rule[-1] is Verdict.ACCEPT]
    assert accepting
    for rule in accepting:
        found = [statement for statement in rule if isinstance(statement, Match)]
        bound = [each for each in found if isinstance(each.field, tuple) and each.field[0] is Field.INPUT_LINK]
        assert all(isinstance(each.value, Member) and each.comparison is Comparison.IS for each in bound)
        assert bound, "what is accepted is what the link's port has"


@given(ports)
def test_all_that_a_port_has_is_under_the_name_of_its_link(found: list[BridgedPort]) -> None:
    elements = plan_port_elements(found)
    assert set(elements[PORTS]) == {each.ifname for each in found}
    for each in found:
        own = {name: {key[1] for key in elements[name] if key[0] == each.ifname} for name in (MACS, BRIDGES, TARGETS)}
        addresses = {str(address) for address in own_addresses(each)}
        assert own == {
            MACS: {each.mac},
            BRIDGES: {BRIDGE_MAC},
            TARGETS: {f"0x{int(address):x}" for address in own_addresses(each) if address.version == 6},
        }
        assert {key[1] for name in ADDRESSES.values() for key in elements[name] if key[0] == each.ifname} == addresses


@given(ports)
def test_the_order_of_ports_makes_no_difference(found: list[BridgedPort]) -> None:
    assert plan_port_elements(found) == plan_port_elements(list(reversed(found)))


def test_without_ports_the_sets_are_empty() -> None:
    elements = plan_port_elements(())
    assert {name.name for name in elements} == {entry.name for entry in plan_port_table().sets}
    assert not any(elements.values())


def test_links_are_matched_by_prefixes_that_no_pods_link_has() -> None:
    table = plan_overlay_table(udp_port=7790)
    links = {value for chain in table.chains for value in values(chain.rules) if str(value).endswith("*")}
    assert links == {f"{BRIDGE_PREFIX}*", f"{UPLINK_PREFIX}*"}
    assert not parse_link_name("veth12345678").startswith((BRIDGE_PREFIX, UPLINK_PREFIX))


def test_an_empty_table_lets_no_vxlan_packet_in() -> None:
    elements = plan_overlay_elements((), {})
    assert elements
    assert not any(elements.values())
