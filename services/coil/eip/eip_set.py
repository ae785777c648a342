"""The sets and maps of the EIP data plane, by name and type, and the marks that are in them.

Place in the flow: `coil.eip.data_plane` fills them, the rules of `coil.eip.eip_table` look them up.

Policies have numbers, and so have the lists of policies that concern a source, the *classes*: both are words of
nftables' type `classid`, whose upper half is the number of a policy. A class is its first policy, and what else is in
the list by the lower half; a policy alone is the class of sources that only it concerns. So ranges of destinations hang
on a policy, whoever it concerns, and a node's sets grow with policies and with pods, not with their product.

What changes often, as when a gateway is lost, is in sets that the kernel looks up by a hash. Ranges are spread over
several sets by the numbers of policies, as the kernel copies all of a set where one range of it changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coil.kernel.family import Family
from coil.kernel.nft_element import SetName
from coil.kernel.nft_table import ADDRESS, DataType, LeadingBits, NftSet, TableFamily

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
HERE_DECIDED: Final = 0x12000002
"""This node carries it, as the mark of its connection says: no chain after the first has to ask again. No node's mark,
as the rules of routing look those up one by one.
"""
ANY_NODE: Final = LeadingBits(HERE, 8)
PENDING: Final = LeadingBits(0x2C000000, 8)
"""Of a connection's mark: by a decision that stands in the mark's other bits it leaves from here, and whether it has an
address of this node is not known yet.
"""
DECIDED: Final = LeadingBits(0x2D000000, 8)
"""The same of one that has. It differs from `PENDING` in `DECIDED_BIT`."""
DECIDED_BIT: Final = 0x01000000
CACHED: Final = LeadingBits(0x2C000000, 7)
"""Either of them."""

POLICY_SHIFT: Final = 16
POLICY_MASK: Final = 0xFFFF << POLICY_SHIFT
ALONE: Final = 1
"""The lower half of a policy's own word."""
POLICIES: Final = 0xFFFF
"""Numbers of policies end here."""
MOST_POLICIES: Final = 8
"""Of one source. With more, what the first ones are not for is dropped."""
SHARDS: Final = 16

BITS: Final = {Family.IPV4: 4, Family.IPV6: 6}
"""The digit that ends the names of what there is for each family."""


def number_word(policy: int, rest: int = ALONE) -> str:
    """A class as nftables writes it: the number of its first policy, and of what follows."""
    return f"{policy:x}:{rest:x}"


CLOSED_WORD: Final = number_word(1)
"""A policy that has all destinations and no way to them."""


def shard_of(word: str) -> int:
    """Which of the sets has a policy's ranges."""
    return int(word.partition(":")[0], 16) % SHARDS


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySets:
    """The sets and maps of one family, by their names in `TABLE`."""

    classes: SetName
    """map: address of a pod of this node -> class"""
    remote_classes: SetName
    """map: mark of another node, address of a pod of that node -> class"""
    subnet_classes: SetName
    """map: range of sources -> class, for sources that are in neither of those"""
    ranges: tuple[SetName, ...]
    """maps: policy, range of destinations beyond the cluster -> policy; by `shard_of`"""
    cluster_ranges: SetName
    """map: policy, range of destinations within the cluster -> policy"""
    ways: SetName
    """map: policy -> mark; nothing where its packets are left alone"""
    eips: SetName
    """map: policy -> address, of those that this node carries"""
    cluster: SetName
    """ranges: the cluster's own addresses"""
    guarded: SetName
    """ranges: destinations of policies that fail closed"""
    guarded_cluster: SetName
    """ranges: those of them that are within the cluster"""
    held: SetName
    """addresses: the floating addresses that are on this node"""
    floating: SetName
    """addresses: the floating addresses of all policies, whichever node has them"""
    known: SetName
    """addresses: those of the node's pods of which the agent knows which policies select them"""
    mesh: SetName
    """map: address of another node, which what is in its tunnel comes from -> the node's mark"""


def _name(name: str) -> SetName:
    return SetName(TableFamily.INET, TABLE, name)


def _family_sets(family: Family) -> FamilySets:
    number = BITS[family]
    return FamilySets(
        classes=_name(f"class{number}"),
        remote_classes=_name(f"remote_class{number}"),
        subnet_classes=_name(f"subnet_class{number}"),
        ranges=tuple(_name(f"range{number}_{shard:x}") for shard in range(SHARDS)),
        cluster_ranges=_name(f"cluster_range{number}"),
        ways=_name(f"way{number}"),
        eips=_name(f"eip{number}"),
        cluster=_name(f"cluster{number}"),
        guarded=_name(f"guarded{number}"),
        guarded_cluster=_name(f"guarded_cluster{number}"),
        held=_name(f"eips{number}"),
        floating=_name(f"floating{number}"),
        known=_name(f"known{number}"),
        mesh=_name(f"mesh{number}"),
    )


SETS: Final[Mapping[Family, FamilySets]] = {family: _family_sets(family) for family in Family}
NEXT: Final = _name("next")
"""map: class -> the same without its first policy"""
EVERYWHERE: Final = _name("everywhere")
"""map: policy -> itself, of those that have all destinations beyond the cluster"""
GUARDED_ALL: Final = _name("guarded_all")
"""`ipv4` and `ipv6`, where one of those fails closed"""
NODE_IPS: Final = _name("node_ip")
"""policies: those whose packets leave this node with its own address"""
DECISIONS: Final = _name("decision")
"""map: policy -> the mark `PENDING` of connections for which it has decided"""
VALID: Final = _name("valid")
"""connections' marks: `DECIDED`, of decisions that have not changed since"""
NODES: Final = _name("nodes")
"""map: hardware address of a peer's tunnel -> its mark"""
PEERS: Final = _name("peers")
"""(mark, hardware address of its tunnel) of each peer"""
SOLICITED: Final = _name("solicited6")
"""multicast groups: where neighbours ask for the floating IPv6 addresses that are on this node (RFC 4291, 2.7.1)"""
CURRENT: Final = _name("current")
"""`ipv4` and `ipv6`, for as long as the agent knows all pods of the node that policies select, with their addresses."""
ALIVE: Final = _name("alive")
"""`ipv4` and `ipv6`, for as long as the node may hold floating addresses."""
ARP_EIPS: Final = SetName(TableFamily.ARP, TABLE, "eips")
"""addresses: the floating addresses that are on this node"""
ARP_ALIVE: Final = SetName(TableFamily.ARP, TABLE, "alive")
"""`request` and `reply`, for as long as the node may hold floating addresses."""
FAMILY_WORDS: Final = {Family.IPV4: "ipv4", Family.IPV6: "ipv6"}
TIMEOUTS: Final = ((ALIVE, tuple(FAMILY_WORDS.values())), (ARP_ALIVE, ("request", "reply")))
"""What is to be refreshed with every acknowledged renewal."""
POD_TIMEOUTS: Final = ((CURRENT, tuple(FAMILY_WORDS.values())),)
"""What is to be refreshed while no pod's address is waited for."""


def packet_sets() -> tuple[NftSet, ...]:
    """Those of the table of packets."""
    by_number = (DataType.CLASS,)
    return (
        *(entry for family in Family for entry in _sets_of(family)),
        NftSet(name=NEXT.name, key=by_number, value=DataType.CLASS),
        NftSet(name=EVERYWHERE.name, key=by_number, value=DataType.CLASS),
        NftSet(name=GUARDED_ALL.name, key=(DataType.PACKET_FAMILY,)),
        NftSet(name=NODE_IPS.name, key=by_number),
        NftSet(name=DECISIONS.name, key=by_number, value=DataType.MARK),
        NftSet(name=VALID.name, key=(DataType.MARK,)),
        NftSet(name=NODES.name, key=(DataType.ETHER,), value=DataType.MARK),
        NftSet(name=PEERS.name, key=(DataType.MARK, DataType.ETHER)),
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
    names, address = SETS[family], ADDRESS[family]
    by_destination, by_number = (DataType.CLASS, address), (DataType.CLASS,)
    return (
        NftSet(name=names.classes.name, key=(address,), value=DataType.CLASS),
        NftSet(name=names.remote_classes.name, key=(DataType.MARK, address), value=DataType.CLASS),
        NftSet(name=names.subnet_classes.name, key=(address,), value=DataType.CLASS, intervals=True),
        *(
            NftSet(name=name.name, key=by_destination, value=DataType.CLASS, intervals=True)
            for name in (*names.ranges, names.cluster_ranges)
        ),
        NftSet(name=names.ways.name, key=by_number, value=DataType.MARK),
        NftSet(name=names.eips.name, key=by_number, value=address),
        *(
            NftSet(name=name.name, key=(address,), intervals=True)
            for name in (names.cluster, names.guarded, names.guarded_cluster)
        ),
        *(NftSet(name=name.name, key=(address,)) for name in (names.held, names.floating, names.known)),
        NftSet(name=names.mesh.name, key=(address,), value=DataType.MARK),
    )
