"""The node's nftables table for pods with addresses of interfaces: which connections are which interface's, which are
translated to the primary one's address, and that pods do not reach the instance's metadata.

    prerouting    from elsewhere, by the primary interface, to the node itself   connection gets the mark 0x80
                  from elsewhere, by another interface                           connection gets that interface's mark
                  a pod opens a connection to the outside                        connection gets the mark 0x80
                  a pod's packet of a connection with 0x80                       packet gets it: rule 1024 leads to main
                  an answer in a connection of another interface                 packet gets its mark: rule 1025
    output        the same of what the node itself answers                       and is routed again
    postrouting   a pod's connection to the outside, by the primary interface    from the primary interface's address
    forward       to the metadata service                                        dropped, and counted

Inside is what pods reach with their own addresses: the VPC's CIDRs, and what is excluded from translation. What comes
in by the primary interface for the node itself may be for a pod of another interface by the time it is routed, as with
a NodePort: its answer has to leave where the question came in. The destination is looked at before Services' addresses
are translated there, and after that where a pod asks: a Service's address is outside, and its pods are not.

An answer comes from a pod of any interface, from a pod of another node to which kube-proxy has sent the question with
this node's address, or from the node. EC2 takes what has an interface's address by that interface only.

Only the bits of these marks are set, in connections and packets: others have the other bits. The mark is set once, when
the connection begins, so a CIDR that comes to the VPC, or leaves it, is for connections to come. A pod is whatever has
an address of the interfaces' ranges, so that an ADD changes nothing here.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, collapse_addresses
from typing import Final

from coil.eni.node_plan import PRIMARY_MARK, SECONDARY_MARK, SECONDARY_MASK
from coil.kernel.family import Family, IPNetwork
from coil.kernel.link import LinkName
from coil.kernel.nft_element import Elements, SetName
from coil.kernel.nft_table import (
    DESTINATION,
    ChainType,
    Comparison,
    Count,
    DataType,
    Field,
    HasBits,
    Hook,
    Jump,
    Match,
    Member,
    NftChain,
    NftSet,
    NftTable,
    PortChoice,
    Priority,
    RegularChain,
    Rule,
    SetBits,
    SourceNat,
    TableFamily,
    Verdict,
)

TABLE: Final = "coil-eni"
METADATA_COUNTER: Final = "metadata"
METADATA_ADDRESSES: Final = (IPv4Address("169.254.169.254"), IPv6Address("fd00:ec2::254"))
"""Of the instance metadata service (EC2 User Guide)."""
POD_RANGES: Final = SetName(TableFamily.INET, TABLE, "pods4")
INSIDE: Final = SetName(TableFamily.INET, TABLE, "inside4")

_FROM_POD: Final = Match(Field.IPV4_SOURCE, Comparison.IS, Member(POD_RANGES.name))
_TO_OUTSIDE: Final = (
    Match(Field.IPV4_DESTINATION, Comparison.IS_NOT, Member(INSIDE.name)),
    Match(Field.DESTINATION_KIND, Comparison.IS_NOT, "local"),
)
_NEW: Final = Match(Field.CONNECTION_STATE, Comparison.AMONG, "new")
_IPV4: Final = Match(Field.FAMILY, Comparison.IS, "ipv4")
_MARK_CONNECTION: Final = SetBits(Field.CONNECTION_MARK, PRIMARY_MARK)
_UNMARKED: Final = HasBits(0, SECONDARY_MASK)
"""Where somebody else uses these bits, the numbers of interfaces cannot be told from theirs, and stay out of it."""
_BY_INTERFACE: Final = "answer"
_ANSWERS: Final[Rule] = (
    Match(Field.CONNECTION_DIRECTION, Comparison.IS, "reply"),
    Match(Field.CONNECTION_MARK, Comparison.IS, HasBits(SECONDARY_MARK)),
    Match(Field.PACKET_MARK, Comparison.IS, _UNMARKED),
    Jump(_BY_INTERFACE),
)
"""Never what the client sends: a pod that opens a connection is its client."""


@dataclass(frozen=True, slots=True)
class PrimaryLink:
    """The primary interface as the node's kernel has it, and its address, which the world sees."""

    link: LinkName
    address: IPv4Address


@dataclass(frozen=True, slots=True)
class SecondaryLink:
    """Another interface as the node's kernel has it, and the mark of its connections."""

    link: LinkName
    mark: int


def plan_nat_table(
    primary: PrimaryLink,
    secondaries: Collection[SecondaryLink] = (),
    *,
    external_snat: bool,
    metadata_access: bool,
    snat_ports: PortChoice = PortChoice.FULLY_RANDOM,
) -> NftTable:
    """`external_snat`: something outside the node translates, so that pods keep their addresses and their interfaces
    wherever they send. `metadata_access`: pods may ask the metadata service.
    """
    to_node: Rule = (
        Match(Field.INPUT_LINK, Comparison.IS, primary.link),
        _IPV4,
        _NEW,
        Match(Field.DESTINATION_KIND, Comparison.IS, "local"),
        _MARK_CONNECTION,
    )
    by_mark = sorted(secondaries, key=lambda each: each.mark)
    by_others: list[Rule] = [
        (
            Match(Field.INPUT_LINK, Comparison.IS, each.link),
            _IPV4,
            _NEW,
            Match(Field.CONNECTION_MARK, Comparison.IS, _UNMARKED),
            SetBits(Field.CONNECTION_MARK, each.mark),
        )
        for each in by_mark
    ]
    mark_answers: list[Rule] = [
        (
            Match(Field.CONNECTION_MARK, Comparison.IS, HasBits(each.mark, SECONDARY_MASK)),
            SetBits(Field.PACKET_MARK, each.mark),
        )
        for each in by_mark
    ]
    pod_opens: Rule = (_FROM_POD, _NEW, *_TO_OUTSIDE, _MARK_CONNECTION)
    pod_sends: Rule = (
        _FROM_POD,
        Match(Field.CONNECTION_MARK, Comparison.IS, HasBits(PRIMARY_MARK)),
        SetBits(Field.PACKET_MARK, PRIMARY_MARK),
    )
    translate: Rule = (
        Match(Field.OUTPUT_LINK, Comparison.IS, primary.link),
        _FROM_POD,
        *_TO_OUTSIDE,
        SourceNat(Family.IPV4, primary.address, snat_ports),
    )
    blocked: tuple[Rule, ...] = tuple(
        (
            Match(DESTINATION[Family.of(address)], Comparison.IS, str(address)),
            Count(METADATA_COUNTER),
            Verdict.DROP,
        )
        for address in METADATA_ADDRESSES
    )
    return NftTable(
        name=TABLE,
        counters=(METADATA_COUNTER,),
        sets=tuple(NftSet(name=name.name, key=(DataType.IPV4,), intervals=True) for name in (POD_RANGES, INSIDE)),
        chains=(
            _filter("arrive", Hook.PREROUTING, Priority.MANGLE, to_node, *by_others),
            _filter(
                "route",
                Hook.PREROUTING,
                Priority.AFTER_DSTNAT,
                *(() if external_snat else (pod_opens,)),
                pod_sends,
                _ANSWERS,
            ),
            NftChain(
                name="output", type=ChainType.ROUTE, hook=Hook.OUTPUT, priority=Priority.MANGLE, rules=(_ANSWERS,)
            ),
            RegularChain(name=_BY_INTERFACE, rules=tuple(mark_answers)),
            NftChain(
                name="translate",
                type=ChainType.NAT,
                hook=Hook.POSTROUTING,
                priority=Priority.SRCNAT,
                rules=() if external_snat else (translate,),
            ),
            _filter("guard", Hook.FORWARD, Priority.FILTER, *(() if metadata_access else blocked)),
        ),
    )


def _filter(name: str, hook: Hook, priority: Priority, *rules: Rule) -> NftChain:
    return NftChain(name=name, type=ChainType.FILTER, hook=hook, priority=priority, rules=rules)


def plan_nat_elements(ranges: Iterable[IPNetwork], inside: Iterable[IPv4Network]) -> Elements:
    """What is in the sets: the ranges that pods have addresses of, and what they reach with these. Networks may
    overlap.
    """
    return {
        name: {_word(network): None for network in collapse_addresses(networks)}
        for name, networks in (
            (POD_RANGES, (network for network in ranges if isinstance(network, IPv4Network))),
            (INSIDE, inside),
        )
    }


def _word(network: IPv4Network) -> str:
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)
