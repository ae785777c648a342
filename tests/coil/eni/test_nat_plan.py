"""The table of NAT, asked as the kernel asks it: chain by chain in their order, with a packet in hand."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.eni.nat_plan import (
    INSIDE,
    METADATA_ADDRESSES,
    METADATA_COUNTER,
    POD_RANGES,
    PrimaryLink,
    SecondaryLink,
    plan_nat_elements,
    plan_nat_table,
)
from coil.eni.node_plan import PRIMARY_MARK
from coil.kernel.family import IPNetwork
from coil.kernel.link import LinkName
from coil.kernel.nft_element import Elements
from coil.kernel.nft_table import (
    Comparison,
    Count,
    Field,
    HasBits,
    Hook,
    Jump,
    Match,
    Member,
    NftChain,
    NftTable,
    RegularChain,
    Rule,
    SetBits,
    SourceNat,
    Verdict,
)

PRIMARY = PrimaryLink(LinkName("eth0"), IPv4Address("10.1.0.4"))
OTHERS = [SecondaryLink(LinkName("eth2"), 0x42), SecondaryLink(LinkName("eth1"), 0x41)]
ELEMENTS = plan_nat_elements(
    map(ip_network, ("10.1.0.32/28", "10.1.1.7/32", "fd00::/80")), map(IPv4Network, ("10.1.0.0/16", "100.64.0.0/16"))
)
POD = "10.1.1.7"


@dataclass
class Packet:
    """One that is new unless `state` says otherwise; what the node has is in `local`."""

    source: str
    destination: str
    input: str = "veth1"
    output: str = "eth0"
    state: str = "new"
    direction: str = "original"
    local: frozenset[str] = frozenset({"10.1.0.4"})
    connection_mark: int = 0
    mark: int = 0
    counted: list[str] = field(default_factory=list)
    dropped: bool = False

    def field(self, field: Field) -> str | int:
        ipv4 = ip_address(self.source).version == 4
        values: dict[Field, str | int] = {
            Field.INPUT_LINK: self.input,
            Field.OUTPUT_LINK: self.output,
            Field.FAMILY: "ipv4" if ipv4 else "ipv6",
            Field.CONNECTION_STATE: self.state,
            Field.CONNECTION_MARK: self.connection_mark,
            Field.CONNECTION_DIRECTION: self.direction,
            Field.PACKET_MARK: self.mark,
            Field.DESTINATION_KIND: "local" if self.destination in self.local else "unicast",
            Field.IPV4_SOURCE if ipv4 else Field.IPV6_SOURCE: self.source,
            Field.IPV4_DESTINATION if ipv4 else Field.IPV6_DESTINATION: self.destination,
        }
        return values.get(field, "")


def matches(match: Match, packet: Packet, elements: Elements) -> bool:
    assert isinstance(match.field, Field)
    value = packet.field(match.field)
    if value == "":  # a field of the other family: the rule is not for this packet
        return False
    match match.value:
        case Member(name):
            [words] = [words for known, words in elements.items() if known.name == name]
            found = any(ip_address(str(value)) in ip_network(str(word)) for word in words)
        case HasBits(bits, mask):
            found = int(value) & (mask | bits) == bits
        case other:
            found = value == other
    return found is not (match.comparison is Comparison.IS_NOT)


def go(table: NftTable, packet: Packet, *hooks: Hook, elements: Elements = ELEMENTS) -> str | None:
    """The address that the packet is translated to, None for its own; marks and counters are set in the packet."""
    chains = [chain for chain in table.chains if isinstance(chain, NftChain)]
    for hook in hooks:
        for chain in sorted((chain for chain in chains if chain.hook is hook), key=lambda chain: chain.priority):
            for rule in chain.rules:
                if (address := _carry_out(table, rule, packet, elements)) is not None:
                    return address
    return None


def _carry_out(table: NftTable, rule: Rule, packet: Packet, elements: Elements) -> str | None:
    for statement in rule:
        match statement:
            case Match():
                if not matches(statement, packet, elements):
                    return None
            case SetBits(Field.CONNECTION_MARK, bits):
                packet.connection_mark |= bits
            case SetBits(Field.PACKET_MARK, bits):
                packet.mark |= bits
            case Jump(target):
                [chain] = [each for each in table.chains if each.name == target]
                assert isinstance(chain, RegularChain)
                for each in chain.rules:
                    assert _carry_out(table, each, packet, elements) is None
            case Count(name):
                packet.counted.append(name)
            case Verdict.DROP:
                packet.dropped = True
            case SourceNat(_, address):
                return str(address)
            case _:
                raise AssertionError(statement)
    return None


def table(*, external_snat: bool = False, metadata_access: bool = False) -> NftTable:
    return plan_nat_table(PRIMARY, OTHERS, external_snat=external_snat, metadata_access=metadata_access)


ROUTED = (Hook.PREROUTING, Hook.FORWARD, Hook.POSTROUTING)


@pytest.mark.parametrize("pod", ["10.1.0.40", POD])
def test_a_pod_opens_a_connection_to_the_outside(pod: str) -> None:
    packet = Packet(pod, "198.51.100.7")
    assert go(table(), packet, *ROUTED) == "10.1.0.4"
    assert (packet.connection_mark, packet.mark, packet.dropped) == (PRIMARY_MARK, PRIMARY_MARK, False)


@pytest.mark.parametrize("destination", ["10.1.200.9", "100.64.3.3"])
def test_a_pod_opens_a_connection_to_the_inside(destination: str) -> None:
    packet = Packet(POD, destination)
    assert go(table(), packet, *ROUTED) is None
    assert (packet.connection_mark, packet.mark) == (0, 0)


def test_a_connection_stays_what_it_was_when_it_began() -> None:
    packet = Packet(POD, "172.20.0.5", state="established", connection_mark=PRIMARY_MARK)
    wider = plan_nat_elements([ip_network("10.1.1.7/32")], [IPv4Network("10.1.0.0/16"), IPv4Network("172.20.0.0/16")])
    go(table(), packet, Hook.PREROUTING, elements=wider)
    assert packet.mark == PRIMARY_MARK
    answer = Packet(POD, "198.51.100.7", state="established")
    go(table(), answer, Hook.PREROUTING)
    assert (answer.connection_mark, answer.mark) == (0, 0)


def test_what_comes_for_the_node_by_the_primary_interface() -> None:
    packet = Packet("198.51.100.7", "10.1.0.4", input="eth0")
    go(table(), packet, Hook.PREROUTING)
    assert (packet.connection_mark, packet.mark) == (PRIMARY_MARK, 0)
    answer = Packet(POD, "198.51.100.7", state="established", connection_mark=packet.connection_mark)
    go(table(), answer, Hook.PREROUTING)
    assert answer.mark == PRIMARY_MARK


@pytest.mark.parametrize(
    "packet",
    [
        Packet("198.51.100.7", "10.1.0.4", input="tun0"),
        Packet("198.51.100.7", POD, input="eth0"),
        Packet("198.51.100.7", "10.1.0.4", input="eth0", state="established"),
        Packet("fd00::9", "fd00::1", input="eth0", local=frozenset({"fd00::1"})),
    ],
)
def test_what_else_comes_is_not_the_primary_interfaces(packet: Packet) -> None:
    go(table(), packet, Hook.PREROUTING)
    assert packet.connection_mark == 0


@pytest.mark.parametrize("external_snat", [False, True])
@pytest.mark.parametrize("destination", ["10.1.1.4", POD])
@pytest.mark.parametrize("others", [0, 0x26001100])
def test_what_comes_by_another_interface_is_answered_there(external_snat: bool, destination: str, others: int) -> None:
    """Whether it is for the node or for a pod; and whoever answers: a pod of any interface, one of another node, the
    node itself.
    """
    asked = Packet("198.51.100.7", destination, input="eth1", connection_mark=others)
    nat = table(external_snat=external_snat)
    go(nat, asked, Hook.PREROUTING)
    assert (asked.connection_mark, asked.mark) == (others | 0x41, 0)
    for source, hook in (("10.1.0.40", Hook.PREROUTING), ("10.1.99.9", Hook.PREROUTING), ("10.1.0.4", Hook.OUTPUT)):
        answer = Packet(
            source,
            "198.51.100.7",
            state="established",
            direction="reply",
            connection_mark=asked.connection_mark,
            mark=0x4000,
        )
        go(nat, answer, hook)
        assert answer.mark == 0x4000 | 0x41
    more = Packet("198.51.100.7", destination, input="eth1", state="established", connection_mark=asked.connection_mark)
    go(nat, more, Hook.PREROUTING)
    assert more.mark == 0, "the client's packets go to the pod"


def test_bits_of_others_that_are_the_same_ones_stay() -> None:
    asked = Packet("198.51.100.7", "10.1.1.4", input="eth1", connection_mark=7)
    go(table(), asked, Hook.PREROUTING)
    assert asked.connection_mark == 7
    answer = Packet("10.1.0.40", "10.9.9.9", state="established", direction="reply", connection_mark=0x42, mark=0x11)
    go(table(), answer, Hook.PREROUTING)
    assert answer.mark == 0x11


def test_ipv6_has_the_primary_interface_only() -> None:
    packet = Packet("fd00::9", "fd00::1", input="eth1", local=frozenset({"fd00::1"}))
    go(table(), packet, Hook.PREROUTING)
    assert packet.connection_mark == 0


def test_a_pod_and_its_own_node() -> None:
    packet = Packet(POD, "198.51.100.9", local=frozenset({"198.51.100.9"}), output="lo")
    assert go(table(), packet, Hook.PREROUTING, Hook.POSTROUTING) is None
    assert packet.connection_mark == 0


@pytest.mark.parametrize("packet", [Packet("10.1.0.4", "198.51.100.7"), Packet(POD, "198.51.100.7", output="tun0")])
def test_what_is_no_pods_or_leaves_elsewhere_is_not_translated(packet: Packet) -> None:
    assert go(table(), packet, *ROUTED) is None


def test_bits_of_others_stay() -> None:
    packet = Packet(POD, "198.51.100.7", connection_mark=0x26001100, mark=0x4001)
    go(table(), packet, Hook.PREROUTING)
    assert (packet.connection_mark, packet.mark) == (0x26001100 | PRIMARY_MARK, 0x4001 | PRIMARY_MARK)


def test_with_external_translation_only_what_came_in_by_the_primary_interface_goes_back_there() -> None:
    external = table(external_snat=True)
    packet = Packet(POD, "198.51.100.7")
    assert go(external, packet, *ROUTED) is None
    assert (packet.connection_mark, packet.mark) == (0, 0)
    answer = Packet(POD, "198.51.100.7", state="established", connection_mark=PRIMARY_MARK)
    go(external, answer, Hook.PREROUTING)
    assert answer.mark == PRIMARY_MARK


@pytest.mark.parametrize("address", METADATA_ADDRESSES)
@pytest.mark.parametrize("metadata_access", [False, True])
def test_the_metadata_service(address: object, metadata_access: bool) -> None:
    source = POD if "." in str(address) else "fd00::9"
    packet = Packet(source, str(address))
    go(table(metadata_access=metadata_access), packet, Hook.FORWARD)
    assert (packet.dropped, packet.counted) == ((False, []) if metadata_access else (True, [METADATA_COUNTER]))


_networks = st.builds(
    lambda number, length: IPv4Network((number >> (32 - length) << (32 - length), length)),
    st.integers(0, 2**32 - 1),
    st.integers(1, 32),
)


@given(st.lists(_networks, max_size=8), st.lists(_networks, max_size=8))
def test_elements_are_the_same_addresses_and_do_not_overlap(
    ranges: list[IPv4Network], inside: list[IPv4Network]
) -> None:
    elements = plan_nat_elements([*ranges, IPv6Network("fd00::/80")], inside)
    for name, networks in ((POD_RANGES, ranges), (INSIDE, inside)):
        found = [ip_network(str(word)) for word in elements[name]]
        assert all("/32" not in str(word) for word in elements[name])
        assert not [(a, b) for a in found for b in found if a is not b and a.overlaps(b)]
        assert set(_bounds(networks)) <= set(_bounds(found)) | {
            address for address in _bounds(networks) if any(address in network for network in found)
        }
        assert all(any(address in network for network in networks) for address in _bounds(found))


def _bounds(networks: Iterable[IPNetwork]) -> Iterator[object]:
    for network in networks:
        yield from (network[0], network[-1])
