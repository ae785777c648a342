"""The node's bridge table for ports of Neutron: what a pod may send, and what of its frames reaches the node. Pure.

    prerouting   from a pod's link   ─► from-pod     only the port's own addresses, as below; else dropped, counted
                                     ─► to-bridge    to the bridge itself: only what is for the node's address there
    forward      to an uplink        what concerns the node's addresses on bridges is dropped: each node has the same
                 a link that is neither a pod's nor an uplink, at the other end of either: dropped
    input        from an uplink      dropped: nobody on another node reaches this node by a network of ports
                 from a pod's link   ─► node         what was for the bridge, and who asks for the node's address
    output       to an uplink        dropped: what the node sends on a bridge is for its own pods

A pod's frames have the port's hardware address, are ARP, IPv4 or IPv6 without a VLAN tag, and have one of the port's
addresses as source, or the link-local one that follows from the hardware address (RFC 4291, appendix A). In ARP and in
neighbour discovery a pod speaks of these addresses only. It is no router (RFC 6105) and no DHCP server. Whatever else
it sends, other protocols included, is dropped.

What is for the bridge is looked at before everything else: with net.bridge.bridge-nf-call-iptables, the answer to a
connection whose source was translated has the node's address in the underlay by the time that the bridge hands it in.

A link that the sets do not know, because somebody else has put it on a bridge or has changed the sets, has no filter.
So it reaches no other node and no pod, and neither of these reaches it.

What passes all that is for the security groups to judge (`coil.neutron.rule_filter`).

The table is the same whatever ports there are, as long as their security groups are: ports are elements of its sets,
each with the name of its link, so that a port costs the node a few elements and no rule. What passes here passes the
inet table's chains as well, if it is for the node: there, only answers get through (`coil.neutron.overlay_filter`).
"""

from collections.abc import Collection, Iterable
from ipaddress import IPv6Address
from typing import Final

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import MacAddress
from coil.kernel.nft_element import Elements, SetName
from coil.kernel.nft_table import (
    ND_TARGET,
    SOURCE,
    ChainType,
    Comparison,
    Count,
    DataType,
    Field,
    Goto,
    Hook,
    Jump,
    Match,
    Member,
    NftChain,
    NftSet,
    NftTable,
    Priority,
    RegularChain,
    Rule,
    TableFamily,
    Verdict,
)
from coil.neutron.node_address import LINK_LOCAL, node_address
from coil.neutron.node_bridge import UPLINK_PREFIX, BridgedPort
from coil.neutron.overlay_filter import TABLE
from coil.neutron.port_rules import RuleSet
from coil.neutron.rule_filter import DENIED, OPEN, RECEIVE, SEND, members_set, plan_rule_chains, plan_rule_sets

SPOOFED: Final = "spoofed"
"""Counts frames of pods that are not the port's, or that no pod may send."""


def _set_name(name: str) -> SetName:
    return SetName(TableFamily.BRIDGE, TABLE, name)


def _target(address: IPAddress) -> str:
    return f"0x{int(address):x}"


PORTS: Final = _set_name("ports")
"""The links of pods: what comes from others does not concern this table."""
MACS: Final = _set_name("macs")
"""Link and hardware address of each port."""
BRIDGES: Final = _set_name("bridges")
"""Link and hardware address of the bridge that it is a port of."""
ADDRESSES: Final = {Family.IPV4: _set_name("addresses4"), Family.IPV6: _set_name("addresses6")}
"""Link and addresses of each port."""
TARGETS: Final = _set_name("targets")
"""Link and addresses that the pod may advertise by neighbour discovery: those of IPv6."""
NODE_ADDRESSES: Final = _set_name("node4")
"""The node's IPv4 addresses on bridges; that of IPv6 is the same on each."""

_FROM_PORT: Final = Match(Field.INPUT_LINK, Comparison.IS, Member(PORTS.name))
_FROM_NO_PORT: Final = Match(Field.INPUT_LINK, Comparison.IS_NOT, Member(PORTS.name))
_TO_PORT: Final = Match(Field.OUTPUT_LINK, Comparison.IS, Member(PORTS.name))
_TO_NO_PORT: Final = Match(Field.OUTPUT_LINK, Comparison.IS_NOT, Member(PORTS.name))
_FROM_NO_UPLINK: Final = Match(Field.INPUT_LINK, Comparison.IS_NOT, f"{UPLINK_PREFIX}*")
_FROM_UPLINK: Final = Match(Field.INPUT_LINK, Comparison.IS, f"{UPLINK_PREFIX}*")
_TO_UPLINK: Final = Match(Field.OUTPUT_LINK, Comparison.IS, f"{UPLINK_PREFIX}*")
_TO_NO_UPLINK: Final = Match(Field.OUTPUT_LINK, Comparison.IS_NOT, f"{UPLINK_PREFIX}*")
_TO_ITS_BRIDGE: Final = Match((Field.INPUT_LINK, Field.ETHER_DESTINATION), Comparison.IS, Member(BRIDGES.name))
_INTELLIGIBLE: Final = Match(Field.PROTOCOL, Comparison.IS_NOT, 255)
"""Of a packet whose headers cannot be followed to its protocol, no match of a protocol says anything."""
_SPOOFED: Final = (Count(SPOOFED), Verdict.DROP)
_ASKING_NODE: Final[tuple[tuple[Match, ...], ...]] = (
    (Match(Field.ARP_DESTINATION, Comparison.IS, Member(NODE_ADDRESSES.name)),),
    (
        Match(Field.ICMPV6_TYPE, Comparison.IS, "nd-neighbor-solicit"),
        Match(ND_TARGET, Comparison.IS, _target(LINK_LOCAL)),
    ),
)
"""Who asks for the node's address."""
_CONCERNING_NODE: Final[tuple[tuple[Match, ...], ...]] = (
    *_ASKING_NODE,
    (Match(Field.IPV4_DESTINATION, Comparison.IS, Member(NODE_ADDRESSES.name)),),
    (Match(Field.IPV6_DESTINATION, Comparison.IS, str(LINK_LOCAL)),),
)
"""The same, and what is for that address."""
_FROM_POD: Final[tuple[Rule, ...]] = (
    (Match((Field.INPUT_LINK, Field.ETHER_SOURCE), Comparison.IS_NOT, Member(MACS.name)), *_SPOOFED),
    # A tag would be taken for no part of the frame by what follows.
    *((Match(Field.ETHER_TYPE, Comparison.IS, tag), *_SPOOFED) for tag in ("8021q", "8021ad")),
    (_TO_ITS_BRIDGE, Jump("to-bridge")),
    *((Match(Field.UDP_SOURCE_PORT, Comparison.IS, server), *_SPOOFED) for server in (67, 547)),
    *((Match(Field.ICMPV6_TYPE, Comparison.IS, kind), *_SPOOFED) for kind in ("nd-router-advert", "nd-redirect")),
    (
        Match(Field.ICMPV6_TYPE, Comparison.IS, "nd-neighbor-advert"),
        Match((Field.INPUT_LINK, ND_TARGET), Comparison.IS_NOT, Member(TARGETS.name)),
        *_SPOOFED,
    ),
    (
        Match((Field.INPUT_LINK, Field.ARP_SOURCE_ETHER), Comparison.IS, Member(MACS.name)),
        Match((Field.INPUT_LINK, Field.ARP_SOURCE), Comparison.IS, Member(ADDRESSES[Family.IPV4].name)),
        Verdict.ACCEPT,
    ),
    *(
        (Match((Field.INPUT_LINK, SOURCE[family]), Comparison.IS, Member(name.name)), _INTELLIGIBLE, Verdict.ACCEPT)
        for family, name in ADDRESSES.items()
    ),
    _SPOOFED,
)
"""What a pod sends; the last rule is for all that no other one was for."""


def link_local_address(mac: MacAddress) -> IPv6Address:
    """The address that a host gives itself (RFC 4291, section 2.5.6): it follows from the hardware address."""
    octets = bytes.fromhex(mac.replace(":", ""))
    identifier = bytes((octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]))
    return IPv6Address(b"\xfe\x80" + bytes(6) + identifier)


def own_addresses(port: BridgedPort) -> tuple[IPAddress, ...]:
    """All that may be the source of what the pod sends."""
    addresses = [interface.ip for interface in port.addresses]
    if any(address.version == 6 for address in addresses):
        addresses.append(link_local_address(port.mac))
    return tuple(dict.fromkeys(addresses))


def plan_port_table(rule_sets: Collection[RuleSet] = ()) -> NftTable:
    """The table, for ports without rules and for those with one of `rule_sets`; what is in its sets is
    `plan_port_elements`'.
    """
    to_bridge: list[Rule] = [(*rule, Verdict.RETURN) for rule in _CONCERNING_NODE]
    to_node: list[Rule] = [(*rule, Verdict.ACCEPT) for rule in _ASKING_NODE]
    between: list[Rule] = [(_TO_UPLINK, *rule, Verdict.DROP) for rule in _CONCERNING_NODE]
    between += (
        (_TO_UPLINK, _FROM_NO_PORT, *_SPOOFED),
        (_TO_PORT, _FROM_NO_PORT, _FROM_NO_UPLINK, *_SPOOFED),
        (_FROM_UPLINK, _TO_NO_PORT, Verdict.DROP),
        (_FROM_PORT, _TO_NO_PORT, _TO_NO_UPLINK, Verdict.DROP),
        (_FROM_PORT, Match(Field.INPUT_LINK, Comparison.IS_NOT, Member(OPEN.name)), Jump(SEND)),
        (_TO_PORT, Match(Field.OUTPUT_LINK, Comparison.IS_NOT, Member(OPEN.name)), Goto(RECEIVE)),
    )
    return NftTable(
        name=TABLE,
        family=TableFamily.BRIDGE,
        counters=(SPOOFED, DENIED),
        sets=(
            NftSet(name=PORTS.name, key=(DataType.LINK,)),
            NftSet(name=MACS.name, key=(DataType.LINK, DataType.ETHER)),
            NftSet(name=BRIDGES.name, key=(DataType.LINK, DataType.ETHER)),
            NftSet(name=ADDRESSES[Family.IPV4].name, key=(DataType.LINK, DataType.IPV4)),
            NftSet(name=ADDRESSES[Family.IPV6].name, key=(DataType.LINK, DataType.IPV6)),
            NftSet(name=TARGETS.name, key=(DataType.LINK, DataType.ND_TARGET)),
            NftSet(name=NODE_ADDRESSES.name, key=(DataType.IPV4,)),
            *plan_rule_sets(rule_sets),
        ),
        chains=(
            *plan_rule_chains(rule_sets),
            RegularChain(name="to-bridge", rules=(*to_bridge, (Verdict.DROP,))),
            RegularChain(name="from-pod", rules=_FROM_POD),
            RegularChain(name="node", rules=(*to_node, (Verdict.DROP,))),
            _filter("prerouting", Hook.PREROUTING, Priority.RAW, (_FROM_PORT, Goto("from-pod"))),
            _filter("forward", Hook.FORWARD, Priority.BRIDGE_FILTER, *between),
            _filter(
                "input",
                Hook.INPUT,
                Priority.BRIDGE_FILTER,
                (_FROM_UPLINK, Verdict.DROP),
                (_TO_ITS_BRIDGE, Verdict.ACCEPT),
                (_FROM_PORT, Goto("node")),
            ),
            _filter("output", Hook.OUTPUT, Priority.BRIDGE_FILTER, (_TO_UPLINK, Verdict.DROP)),
        ),
    )


def plan_port_elements(ports: Iterable[BridgedPort]) -> Elements:
    """What is in the sets, for all ports of the node."""
    elements: dict[SetName, dict[str | tuple[str, ...], str | int | None]] = {
        name: {} for name in (PORTS, MACS, BRIDGES, *ADDRESSES.values(), TARGETS, NODE_ADDRESSES, OPEN)
    }
    for port in ports:
        elements[PORTS][port.ifname] = None
        judged = OPEN if port.rules is None else members_set(port.rules)
        elements.setdefault(judged, {})[port.ifname] = None
        elements[MACS][port.ifname, port.mac] = None
        elements[BRIDGES][port.ifname, port.bridge_mac] = None
        for address in own_addresses(port):
            elements[ADDRESSES[Family.of(address)]][port.ifname, str(address)] = None
            if address.version == 6:
                elements[TARGETS][port.ifname, _target(address)] = None
        for interface in port.addresses:
            if interface.version == 4:
                elements[NODE_ADDRESSES][str(node_address(interface))] = None
    return elements


def _filter(name: str, hook: Hook, priority: Priority, *rules: Rule) -> NftChain:
    return NftChain(name=name, type=ChainType.FILTER, hook=hook, priority=priority, rules=rules)
