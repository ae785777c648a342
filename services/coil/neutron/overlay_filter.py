"""The node's inet table for networks of ports: whose VXLAN packets are let in, and that bridges of networks and the
node's own network stay apart. Pure.

    prerouting    VXLAN packet, not from a node's address         dropped, counted; those from nodes are not tracked
                  by an uplink that is no bridge's port           dropped
                  by a bridge, not to the node's address there    not tracked, see below
    input         by a bridge: answers to what the node began     accepted, and neighbour discovery
                  by a bridge: anything else                      dropped, counted
    forward       from a bridge to elsewhere, or back             dropped, counted
    postrouting   from the node to a pod                          from the node's address on the bridge

The chains match links by the prefixes of their names, so they hold for a bridge that has just appeared, and whatever is
in the sets. With net.bridge.bridge-nf-call-iptables, which Kubernetes' installers set, bridged packets pass the node's
chains as well: untracked, they are not translated by kube-proxy, so a Service's address does not lead a pod out of its
network. What the node sends to a pod has the address that the pod can answer, which is on its link
(`coil.neutron.node_address`), even where something else has chosen another source for it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from coil.kernel.family import Family, IPAddress
from coil.kernel.nft_element import Elements, SetName
from coil.kernel.nft_table import (
    ADDRESS,
    DESTINATION,
    SOURCE,
    ChainType,
    Comparison,
    Count,
    Field,
    Hook,
    Lookup,
    Match,
    Member,
    NftChain,
    NftSet,
    NftTable,
    NoTrack,
    Priority,
    Rule,
    SourceNat,
    TableFamily,
    Verdict,
)
from coil.neutron.node_bridge import BRIDGE_PREFIX, UPLINK_PREFIX

TABLE: Final = "coil-neutron"
STRANGERS: Final = "strangers"
"""Counts VXLAN packets from addresses that are no node's."""
TO_NODE: Final = "to-node"
"""Counts packets of pods to the node."""
ACROSS: Final = "across"
"""Counts packets that would have been routed from a network of ports to elsewhere, or back."""

_DIGITS: Final = {Family.IPV4: "4", Family.IPV6: "6"}


def _set_name(name: str, family: Family) -> SetName:
    return SetName(TableFamily.INET, TABLE, name + _DIGITS[family])


NODES: Final = {family: _set_name("nodes", family) for family in Family}
"""The other nodes' addresses."""
OWN: Final = {family: _set_name("own", family) for family in Family}
"""The node's addresses on bridges."""
SOURCES: Final = {family: _set_name("sources", family) for family in Family}
"""From a pod's address to the one that the node has for it."""

_BY_BRIDGE: Final = Match(Field.INPUT_LINK, Comparison.IS, f"{BRIDGE_PREFIX}*")
_TO_BRIDGE: Final = Match(Field.OUTPUT_LINK, Comparison.IS, f"{BRIDGE_PREFIX}*")


def plan_overlay_table(*, udp_port: int) -> NftTable:
    """The table; what is in its sets is `plan_overlay_elements`'."""
    to_port = Match(Field.UDP_DESTINATION_PORT, Comparison.IS, udp_port)
    from_strangers: list[Rule] = [
        (
            to_port,
            Match(SOURCE[family], Comparison.IS_NOT, Member(NODES[family].name)),
            Count(STRANGERS),
            Verdict.DROP,
        )
        for family in Family
    ]
    untracked: list[Rule] = [
        (
            _BY_BRIDGE,
            Match(DESTINATION[family], Comparison.IS_NOT, Member(OWN[family].name)),
            NoTrack(),
        )
        for family in Family
    ]
    neighbours: list[Rule] = [
        (_BY_BRIDGE, Match(Field.ICMPV6_TYPE, Comparison.IS, kind), Verdict.ACCEPT)
        for kind in ("nd-neighbor-solicit", "nd-neighbor-advert")
    ]
    sources: list[Rule] = [
        (_TO_BRIDGE, SourceNat(family, Lookup(DESTINATION[family], SOURCES[family].name))) for family in Family
    ]
    return NftTable(
        name=TABLE,
        counters=(STRANGERS, TO_NODE, ACROSS),
        sets=tuple(
            NftSet(
                name=names[family].name,
                key=(ADDRESS[family],),
                value=ADDRESS[family] if names is SOURCES else None,
            )
            for names in (NODES, OWN, SOURCES)
            for family in Family
        ),
        chains=(
            _filter(
                "arrive",
                Hook.PREROUTING,
                Priority.RAW,
                *from_strangers,
                (to_port, NoTrack()),
                (Match(Field.INPUT_LINK, Comparison.IS, f"{UPLINK_PREFIX}*"), Verdict.DROP),
                *untracked,
            ),
            _filter("leave", Hook.OUTPUT, Priority.RAW, (to_port, NoTrack())),
            _filter(
                "input",
                Hook.INPUT,
                Priority.FILTER,
                (
                    _BY_BRIDGE,
                    Match(Field.CONNECTION_STATE, Comparison.AMONG, "established"),
                    Match(Field.CONNECTION_DIRECTION, Comparison.IS, "reply"),
                    Verdict.ACCEPT,
                ),
                (_BY_BRIDGE, Match(Field.CONNECTION_STATE, Comparison.AMONG, "related"), Verdict.ACCEPT),
                *neighbours,
                (_BY_BRIDGE, Count(TO_NODE), Verdict.DROP),
            ),
            _filter(
                "forward",
                Hook.FORWARD,
                Priority.FILTER,
                # Only what is bridged has bridges at both ends: no packet from one is for the node to route.
                (_BY_BRIDGE, _TO_BRIDGE, Verdict.ACCEPT),
                (_BY_BRIDGE, Count(ACROSS), Verdict.DROP),
                (_TO_BRIDGE, Count(ACROSS), Verdict.DROP),
            ),
            NftChain(
                name="translate",
                type=ChainType.NAT,
                hook=Hook.POSTROUTING,
                # Before others choose a source: a connection is translated once.
                priority=Priority.BEFORE_SRCNAT,
                rules=tuple(sources),
            ),
        ),
    )


def _filter(name: str, hook: Hook, priority: Priority, *rules: Rule) -> NftChain:
    return NftChain(name=name, type=ChainType.FILTER, hook=hook, priority=priority, rules=rules)


def plan_overlay_elements(peers: Iterable[IPAddress], sources: Mapping[IPAddress, IPAddress]) -> Elements:
    """What is in the sets: `peers` are the other nodes' addresses, `sources` the node's address for each pod's."""
    elements: dict[SetName, dict[str | tuple[str, ...], str | int | None]] = {
        name: {} for names in (NODES, OWN, SOURCES) for name in names.values()
    }
    for peer in peers:
        elements[NODES[Family.of(peer)]][str(peer)] = None
    for pod, source in sources.items():
        elements[OWN[Family.of(pod)]][str(source)] = None
        elements[SOURCES[Family.of(pod)]][str(pod)] = str(source)
    return elements
