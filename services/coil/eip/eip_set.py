"""The sets and maps of the EIP data plane, by name and type, and the marks that are in them.

Place in the flow: `coil.eip.data_plane` fills them, the rules of `coil.eip.eip_table` look them up.

Classes and policies are numbers of nftables' type `classid`. What changes often hangs on a policy's number, in sets
that the kernel looks up by a hash: where a gateway is lost, the sets of ranges stay as they are, which the kernel
changes slowly.
"""

from dataclasses import dataclass
from typing import Final

from coil.kernel.family import Family
from coil.kernel.nft_element import SetName, class_word
from coil.kernel.nft_table import DataType, LeadingBits, NftSet, TableFamily

TABLE: Final = "coil-eip"

HERE: Final = 0x26000000
"""This node carries it."""
OPEN: Final = 0
"""Nobody carries it, and it may leave from its own node. In no set: its packets are left alone."""
CLOSED: Final = 0x260000FF
"""Nobody carries it."""
FORWARDED: Final = 0x12000000
"""On its way into the tunnel: no node's mark, as what it is wrapped in keeps the mark, and is routed in its turn."""
PROBE_MARK: Final = 0x12000001
"""Said to a pod of this node, in the name of a server: nothing for conntrack."""
ANY_NODE: Final = LeadingBits(HERE, 8)

BITS: Final = {Family.IPV4: 4, Family.IPV6: 6}
"""The digit that ends the names of what there is for each family."""

_ADDRESS: Final = {Family.IPV4: DataType.IPV4, Family.IPV6: DataType.IPV6}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySets:
    """The sets and maps of one family, by their names in `TABLE`."""

    classes: SetName
    """map: address of a pod -> class"""
    subnet_classes: SetName
    """map: range of sources -> class, for sources that are not in `classes`"""
    choices: SetName
    """map: class, range of destinations -> policy"""
    default_choices: SetName
    """map: class -> policy"""
    eips: SetName
    """map: policy -> address, of those that this node carries"""
    cluster: SetName
    """ranges: the cluster's own addresses"""
    held: SetName
    """addresses: the floating addresses that are on this node"""
    floating: SetName
    """addresses: the floating addresses of all policies, whichever node has them"""
    known: SetName
    """addresses: those of the node's pods of which the agent knows which policies select them"""
    mesh: SetName
    """addresses: those of the other nodes, which what is in their tunnels comes from"""


def _name(name: str) -> SetName:
    return SetName(TableFamily.INET, TABLE, name)


def _family_sets(family: Family) -> FamilySets:
    number = BITS[family]
    return FamilySets(
        classes=_name(f"class{number}"),
        subnet_classes=_name(f"subnet_class{number}"),
        choices=_name(f"choice{number}"),
        default_choices=_name(f"default_choice{number}"),
        eips=_name(f"eip{number}"),
        cluster=_name(f"cluster{number}"),
        held=_name(f"eips{number}"),
        floating=_name(f"floating{number}"),
        known=_name(f"known{number}"),
        mesh=_name(f"mesh{number}"),
    )


SETS: Final = {family: _family_sets(family) for family in Family}
WAYS: Final = _name("way")
"""map: policy -> mark; nothing where its packets are left alone"""
NODE_IPS: Final = _name("node_ip")
"""policies: those whose packets leave this node with its own address"""
NODES: Final = _name("nodes")
"""map: hardware address of a peer's tunnel -> its mark"""
SOLICITED: Final = _name("solicited6")
"""multicast groups: where neighbours ask for the floating IPv6 addresses that are on this node (RFC 4291, 2.7.1)"""
UNKNOWN: Final = 0x00010001
"""The class of sources that may be pods of which it is not known which policies select them, and the number of what
decides for them: to each destination that a policy of a closed gateway has, there is no way.
"""
UNKNOWN_WORD: Final = class_word(1)
CURRENT: Final = _name("current")
"""`ipv4` and `ipv6`, for as long as the agent knows all pods of the node that policies select, with their addresses."""
ALIVE: Final = _name("alive")
"""`ipv4` and `ipv6`, for as long as the node may hold floating addresses."""
ARP_EIPS: Final = SetName(TableFamily.ARP, TABLE, "eips")
"""addresses: the floating addresses that are on this node"""
ARP_ALIVE: Final = SetName(TableFamily.ARP, TABLE, "alive")
"""`request` and `reply`, for as long as the node may hold floating addresses."""
RANGED: Final = frozenset(
    name for names in SETS.values() for name in (names.subnet_classes, names.choices, names.cluster)
)
"""Those with ranges."""
TIMEOUTS: Final = ((ALIVE, ("ipv4", "ipv6")), (ARP_ALIVE, ("request", "reply")))
"""What is to be refreshed with every acknowledged renewal."""
POD_TIMEOUTS: Final = ((CURRENT, ("ipv4", "ipv6")),)
"""What is to be refreshed while no pod's address is waited for."""


def packet_sets() -> tuple[NftSet, ...]:
    """Those of the table of packets."""
    return (
        *(entry for family in Family for entry in _sets_of(family)),
        NftSet(name=WAYS.name, key=(DataType.CLASS,), value=DataType.MARK),
        NftSet(name=NODE_IPS.name, key=(DataType.CLASS,)),
        NftSet(name=NODES.name, key=(DataType.ETHER,), value=DataType.MARK),
        NftSet(name=SOLICITED.name, key=(DataType.IPV6,)),
        NftSet(name=CURRENT.name, key=(DataType.PACKET_FAMILY,), timeouts=True),
        NftSet(name=ALIVE.name, key=(DataType.PACKET_FAMILY,), timeouts=True),
    )


def arp_sets() -> tuple[NftSet, ...]:
    """Those of the table of ARP."""
    return (
        NftSet(name=ARP_EIPS.name, key=(DataType.IPV4,)),
        NftSet(name=ARP_ALIVE.name, key=(DataType.ARP_OPERATION,), timeouts=True),
    )


def _sets_of(family: Family) -> tuple[NftSet, ...]:
    names, address = SETS[family], _ADDRESS[family]
    by_destination, by_number = (DataType.CLASS, address), (DataType.CLASS,)
    return (
        NftSet(name=names.classes.name, key=(address,), value=DataType.CLASS),
        NftSet(name=names.subnet_classes.name, key=(address,), value=DataType.CLASS, intervals=True),
        NftSet(name=names.choices.name, key=by_destination, value=DataType.CLASS, intervals=True),
        NftSet(name=names.default_choices.name, key=by_number, value=DataType.CLASS),
        NftSet(name=names.eips.name, key=by_number, value=address),
        NftSet(name=names.cluster.name, key=(address,), intervals=True),
        NftSet(name=names.held.name, key=(address,)),
        NftSet(name=names.floating.name, key=(address,)),
        NftSet(name=names.known.name, key=(address,)),
        NftSet(name=names.mesh.name, key=(address,)),
    )
