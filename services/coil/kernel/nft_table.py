"""nftables tables, as far as we write them: counters, sets and maps, chains, and rules of a few statements.

Place in the flow: `coil.egress`, `coil.eip` and `coil.podnet` plan a table, `coil.nft` renders it for libnftables and
compares it with the kernel's. Links are matched by name, never by index, so a table is the same in every namespace.
What is in a set is not part of its table: `coil.kernel.nft_element`.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from ipaddress import IPv4Address
from typing import Final, TypeAlias

from coil.kernel.family import Family, IPNetwork


class TableFamily(StrEnum):
    INET = "inet"
    """Packets of IPv4 and IPv6."""
    ARP = "arp"
    IP = "ip"
    IP6 = "ip6"
    """Of these two, only others have tables: those of iptables-nft are called so."""
    BRIDGE = "bridge"
    """Frames, while a bridge forwards them or hands them to the node."""


class ChainType(StrEnum):
    FILTER = "filter"
    NAT = "nat"
    """Sees the first packet of a connection only; what it decides holds for the others."""
    ROUTE = "route"
    """Packets whose mark it changes are routed again."""


class Hook(StrEnum):
    PREROUTING = "prerouting"
    INPUT = "input"
    FORWARD = "forward"
    OUTPUT = "output"
    POSTROUTING = "postrouting"


class Priority(IntEnum):
    """Where a chain stands among those of its hook (linux/netfilter_ipv4.h); `nft` prints the names."""

    BEFORE_RAW = -350
    """Before what others do to a packet, but for the reassembly of fragments (-400)."""
    RAW = -300
    """Before conntrack; for a bridge's frames, before everything else (linux/netfilter_bridge.h)."""
    BRIDGE_FILTER = -200
    """For a bridge's frames, before br_netfilter (0): where that takes a frame through the chains for IP or ARP, the
    bridge's chains of its own priority see it no more, unless they were there first (br_nf_hook_thresh).
    """
    MANGLE = -150
    DSTNAT = -100
    AFTER_DSTNAT = -95
    FILTER = 0
    BEFORE_SRCNAT = 95
    SRCNAT = 100
    AFTER_SRCNAT = 110


class Field(Enum):
    """What a rule may look at or set, as `nft` writes it."""

    INPUT_LINK = "meta iifname"
    OUTPUT_LINK = "meta oifname"
    INPUT_TYPE = "meta iiftype"
    """The kind of the link that the packet came in by (ARPHRD_*, linux/if_arp.h): `ether`, `ipip`, `ipip6`."""
    INPUT_GROUP = "meta iifgroup"
    """Of the link that the packet came in by, a number (`ip link set group`)."""
    FAMILY = "meta nfproto"
    PROTOCOL = "meta l4proto"
    PACKET_MARK = "meta mark"
    PACKET_CLASS = "meta priority"
    """The traffic class: a number that queueing disciplines look at, and otherwise nobody."""
    ETHER_SOURCE = "ether saddr"
    ETHER_DESTINATION = "ether daddr"
    ETHER_TYPE = "ether type"
    """Of the frame: `8021q` where it has a tag."""
    IPV4_SOURCE = "ip saddr"
    IPV6_SOURCE = "ip6 saddr"
    IPV4_DESTINATION = "ip daddr"
    IPV6_DESTINATION = "ip6 daddr"
    ICMP_TYPE = "icmp type"
    ICMPV6_TYPE = "icmpv6 type"
    TCP_FLAGS = "tcp flags"
    SOURCE_PORT = "th sport"
    DESTINATION_PORT = "th dport"
    """Of any protocol that has its ports where TCP has them."""
    TCP_SOURCE_PORT = "tcp sport"
    TCP_DESTINATION_PORT = "tcp dport"
    SCTP_SOURCE_PORT = "sctp sport"
    SCTP_DESTINATION_PORT = "sctp dport"
    UDP_SOURCE_PORT = "udp sport"
    UDP_DESTINATION_PORT = "udp dport"
    """Of UDP only, so that the rule needs no match of the protocol."""
    ARP_OPERATION = "arp operation"
    ARP_SOURCE_ETHER = "arp saddr ether"
    ARP_SOURCE = "arp saddr ip"
    ARP_DESTINATION = "arp daddr ip"
    CONNECTION_STATE = "ct state"
    CONNECTION_MARK = "ct mark"
    CONNECTION_DIRECTION = "ct direction"
    CONNECTION_STATUS = "ct status"
    SOURCE_KIND = "fib saddr type"
    """What the routing tables say of the source: `local`, `unicast`, …"""
    DESTINATION_KIND = "fib daddr type"
    RETURN_LINK = "fib saddr . iif oif"
    """The link by which an answer would leave, if it is the one that the packet came in by: else `MISSING`."""


SOURCE = {Family.IPV4: Field.IPV4_SOURCE, Family.IPV6: Field.IPV6_SOURCE}
DESTINATION = {Family.IPV4: Field.IPV4_DESTINATION, Family.IPV6: Field.IPV6_DESTINATION}


@dataclass(frozen=True, slots=True)
class TransportBits:
    """So many bits behind the network header, from `offset` on, to be compared with text such as `0x1f`. For what not
    every version of libnftables has a name of.
    """

    offset: int
    length: int


ND_TARGET = TransportBits(offset=64, length=128)
"""Of a neighbour solicitation and of an advertisement (RFC 4861, sections 4.3 and 4.4)."""


@dataclass(frozen=True, slots=True)
class MaskedField:
    """The bits of a field of 32 bits that are in `mask`, and those of `bits` in the place of others."""

    field: Field
    mask: int
    bits: int = 0


Key: TypeAlias = Field | MaskedField | tuple[Field | MaskedField | TransportBits, ...]
"""What is looked up in a set or a map; several fields are looked up together."""


class DataType(StrEnum):
    """What the elements of sets and maps are made of."""

    IPV4 = "ipv4_addr"
    IPV6 = "ipv6_addr"
    ETHER = "ether_addr"
    CLASS = "classid"
    MARK = "mark"
    PACKET_FAMILY = "nf_proto"
    ARP_OPERATION = "arp_op"
    PROTOCOL = "inet_proto"
    PORT = "inet_service"
    LINK = "ifname"
    ND_TARGET = "integer"
    """What `ND_TARGET` is, as a number such as `0x1f`: it has no type of its own, so it stands beside others only."""


ADDRESS = {Family.IPV4: DataType.IPV4, Family.IPV6: DataType.IPV6}


@dataclass(frozen=True, slots=True, kw_only=True)
class NftSet:
    """A set, or (with `value`) a map. `intervals`: its addresses may be ranges, which do not overlap. `timeouts`: its
    elements may expire. `size`: so many elements at most, for sets that rules write to (`Remember`).
    """

    name: str
    key: tuple[DataType, ...]
    value: DataType | None = None
    intervals: bool = False
    timeouts: bool = False
    size: int | None = None


MISSING: Final = False
"""That the routing tables have no such link."""


class Comparison(Enum):
    IS = "=="
    IS_NOT = "!="
    AMONG = "in"
    """For flags, such as the state of a connection."""


@dataclass(frozen=True, slots=True)
class LeadingBits:
    """All numbers of 32 bits whose first `length` bits are those of `value`."""

    value: int
    length: int


@dataclass(frozen=True, slots=True)
class HasBits:
    """All numbers that have these bits, and none of the others of `mask`, whatever bits they have besides."""

    bits: int
    mask: int = 0


@dataclass(frozen=True, slots=True)
class NumberRange:
    """All numbers from `first` to `last`, of which there are at least two."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Member:
    """The elements of the table's set of that name."""

    set: str


@dataclass(frozen=True, slots=True)
class Lookup:
    """What the table's map of that name has for the key. Where it has nothing, the rule ends."""

    key: Key
    map: str


@dataclass(frozen=True, slots=True)
class Match:
    """The rule goes on only with packets whose `field` compares so with `value`; several values: with one of them."""

    field: Key | TransportBits
    comparison: Comparison
    value: str | int | LeadingBits | HasBits | NumberRange | IPNetwork | Member | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assign:
    """Set a field to a number, to another field, or to what a map has."""

    field: Field
    value: int | Field | Lookup


@dataclass(frozen=True, slots=True)
class SetBits:
    """Set these bits of a field, and leave the others as they are."""

    field: Field
    bits: int


class PortChoice(StrEnum):
    """Which source port a translated connection gets (`NF_NAT_RANGE_PROTO_RANDOM*`, linux/netfilter/nf_nat.h)."""

    OWN = ""
    """The one that it has, or the nearest that is free."""
    RANDOM = "random"
    FULLY_RANDOM = "fully-random"
    """Drawn for each connection. Two processors that translate at the same time may find the same port free, and the
    second packet is dropped: the less likely, the more freely they choose.
    """


@dataclass(frozen=True, slots=True)
class SourceNat:
    """Give the connection another source address, of that family; this ends the rule, unless a map has none."""

    family: Family
    address: IPv4Address | Field | Lookup
    ports: PortChoice = PortChoice.OWN


@dataclass(frozen=True, slots=True)
class DestinationNat:
    """Give the connection another destination, of that family: the address and the port that maps have. This ends the
    rule, unless one of them has none.
    """

    family: Family
    address: Lookup
    port: Lookup


@dataclass(frozen=True, slots=True)
class ClampSegments:
    """Lower the TCP segment size that a SYN offers to what the packet's route has room for."""


@dataclass(frozen=True, slots=True)
class NoTrack:
    """Conntrack does not look at the packet: it belongs to no connection, and is not translated."""


@dataclass(frozen=True, slots=True)
class Remember:
    """Have the packet's key in the table's set, for so many seconds from now on. Where the set is full, the rule ends.

    The set has `timeouts` and a `size`.
    """

    key: Key
    set: str
    seconds: int


@dataclass(frozen=True, slots=True)
class Jump:
    """Go on in another chain of the table, and then behind this rule."""

    chain: str


@dataclass(frozen=True, slots=True)
class Goto:
    """Go on in another chain of the table, and then where this one returns to."""

    chain: str


@dataclass(frozen=True, slots=True)
class Count:
    """Count the packet under the table's counter of that name."""

    counter: str


class Verdict(StrEnum):
    """What ends a rule."""

    ACCEPT = "accept"
    """Other tables, and later chains, may still drop it."""
    DROP = "drop"
    RETURN = "return"
    MASQUERADE = "masquerade"


Statement: TypeAlias = (
    Match
    | Assign
    | SetBits
    | SourceNat
    | DestinationNat
    | ClampSegments
    | NoTrack
    | Count
    | Remember
    | Jump
    | Goto
    | Verdict
)
Rule: TypeAlias = tuple[Statement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NftChain:
    """A base chain that accepts what no rule of it drops."""

    name: str
    type: ChainType
    hook: Hook
    priority: Priority
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegularChain:
    """A chain for packets that a rule sends there."""

    name: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NftTable:
    """`table <family> <name>`, with all that is to be in it but the elements of its sets."""

    name: str
    chains: tuple[NftChain | RegularChain, ...]
    counters: tuple[str, ...] = ()
    sets: tuple[NftSet, ...] = ()
    family: TableFamily = TableFamily.INET

    def __str__(self) -> str:
        return f"table {self.family.value} {self.name}"
