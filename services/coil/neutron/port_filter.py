"""The node's bridge table for ports of Neutron: what a pod may send, and what of its frames reaches the node. Pure.

    prerouting   from a pod's link   ─► from-LINK    only the port's own addresses, as below; else dropped, counted
                                                     to the bridge itself: only what is for the node's address there
    forward      to an uplink        what concerns the node's addresses on bridges is dropped: each node has the same
    input        from an uplink      dropped: nobody on another node reaches this node by a network of ports
                 from a pod's link   ─► node         what was for the bridge, and who asks for the node's address
    output       to an uplink        dropped: what the node sends on a bridge is for its own pods

A pod's frames have the port's hardware address, are ARP, IPv4 or IPv6 without a VLAN tag, and have one of the port's
addresses as source, or the link-local one that follows from the hardware address (RFC 4291, appendix A). In ARP and in
neighbour discovery a pod speaks of these addresses only. It is no router (RFC 6105) and no DHCP server. Whatever else
it sends, other protocols included, is dropped.

What is for the bridge is looked at before everything else: with net.bridge.bridge-nf-call-iptables, the answer to a
connection whose source was translated has the node's address in the underlay by the time that the bridge hands it in.

Each port has chains of its own, which are found by the name of its link. What passes here passes the inet table's
chains as well, if it is for the node: there, only answers get through (`coil.neutron.overlay_filter`).
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import MacAddress
from coil.kernel.nft_table import (
    DESTINATION,
    SOURCE,
    ChainType,
    Comparison,
    Count,
    Field,
    Goto,
    Hook,
    Jump,
    Match,
    NftChain,
    NftTable,
    Priority,
    RegularChain,
    Rule,
    TableFamily,
    TransportBits,
    Verdict,
)
from coil.neutron.node_address import node_address
from coil.neutron.node_bridge import UPLINK_PREFIX, BridgedPort
from coil.neutron.overlay_filter import TABLE

SPOOFED: Final = "spoofed"
"""Counts frames of pods that are not the port's, or that no pod may send."""
TO_BRIDGE: Final = "to-bridge"
"""The chain of frames with the bridge's hardware address."""
NODE: Final = "node"
"""The chain of frames that the bridge hands to the node as well as to others."""

_TARGET: Final = TransportBits(offset=64, length=128)
"""Of a solicitation and of an advertisement (RFC 4861, sections 4.3 and 4.4)."""
_SOLICITATION: Final = Match(Field.ICMPV6_TYPE, Comparison.IS, "nd-neighbor-solicit")
_ADVERTISEMENT: Final = Match(Field.ICMPV6_TYPE, Comparison.IS, "nd-neighbor-advert")
_FROM_UPLINK: Final = Match(Field.INPUT_LINK, Comparison.IS, f"{UPLINK_PREFIX}*")
_TO_UPLINK: Final = Match(Field.OUTPUT_LINK, Comparison.IS, f"{UPLINK_PREFIX}*")
_INTELLIGIBLE: Final = Match(Field.PROTOCOL, Comparison.IS_NOT, 255)
"""Of a packet whose headers cannot be followed to its protocol, no match of a protocol says anything."""
_SPOOFED: Final = (Count(SPOOFED), Verdict.DROP)


def from_chain(port: BridgedPort) -> str:
    """The chain of what the pod sends."""
    return f"from-{port.ifname}"


def _advertised_chain(port: BridgedPort) -> str:
    return f"nd-{port.ifname}"


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


def plan_port_table(ports: Iterable[BridgedPort]) -> NftTable:
    """The table for all ports of the node."""
    ports = sorted(ports, key=lambda port: port.ifname)
    node = {node_address(interface) for port in ports for interface in port.addresses}
    nodes = sorted(node, key=lambda address: (address.version, int(address)))
    from_ports: list[Rule] = [(_from(port), Goto(from_chain(port))) for port in ports]
    to_uplink: list[Rule] = [(_TO_UPLINK, *rule) for address in nodes for rule in _concerning(address, Verdict.DROP)]
    to_bridge: list[Rule] = [rule for address in nodes for rule in _concerning(address, Verdict.RETURN)]
    asking: list[Rule] = [(*_asking(address), Verdict.ACCEPT) for address in nodes]
    to_node: list[Rule] = []
    for port in ports:
        to_node.append((_from(port), Match(Field.ETHER_DESTINATION, Comparison.IS, port.bridge_mac), Verdict.ACCEPT))
        to_node.append((_from(port), Goto(NODE)))
    return NftTable(
        name=TABLE,
        family=TableFamily.BRIDGE,
        counters=(SPOOFED,),
        chains=(
            *(RegularChain(name=_advertised_chain(port), rules=_advertised(port)) for port in ports if _has_ipv6(port)),
            RegularChain(name=TO_BRIDGE, rules=(*to_bridge, (Verdict.DROP,))),
            *(RegularChain(name=from_chain(port), rules=_from_pod(port)) for port in ports),
            RegularChain(name=NODE, rules=(*asking, (Verdict.DROP,))),
            _filter("prerouting", Hook.PREROUTING, Priority.RAW, *from_ports),
            _filter(
                "forward",
                Hook.FORWARD,
                Priority.BRIDGE_FILTER,
                *to_uplink,
            ),
            _filter("input", Hook.INPUT, Priority.BRIDGE_FILTER, (_FROM_UPLINK, Verdict.DROP), *to_node),
            _filter("output", Hook.OUTPUT, Priority.BRIDGE_FILTER, (_TO_UPLINK, Verdict.DROP)),
        ),
    )


def _from_pod(port: BridgedPort) -> tuple[Rule, ...]:
    rules: list[Rule] = [
        (Match(Field.ETHER_SOURCE, Comparison.IS_NOT, port.mac), *_SPOOFED),
        # A tag would be taken for no part of the frame by what follows.
        *((Match(Field.ETHER_TYPE, Comparison.IS, tag), *_SPOOFED) for tag in ("8021q", "8021ad")),
        (Match(Field.ETHER_DESTINATION, Comparison.IS, port.bridge_mac), Jump(TO_BRIDGE)),
        *((Match(Field.UDP_SOURCE_PORT, Comparison.IS, server), *_SPOOFED) for server in (67, 547)),
        *((Match(Field.ICMPV6_TYPE, Comparison.IS, kind), *_SPOOFED) for kind in ("nd-router-advert", "nd-redirect")),
    ]
    if _has_ipv6(port):
        rules.append((_ADVERTISEMENT, Jump(_advertised_chain(port))))
    for address in own_addresses(port):
        if isinstance(address, IPv4Address):
            rules.append(
                (
                    Match(Field.ARP_SOURCE_ETHER, Comparison.IS, port.mac),
                    Match(Field.ARP_SOURCE, Comparison.IS, str(address)),
                    Verdict.ACCEPT,
                )
            )
        rules.append((Match(SOURCE[Family.of(address)], Comparison.IS, str(address)), _INTELLIGIBLE, Verdict.ACCEPT))
    return (*rules, _SPOOFED)


def _advertised(port: BridgedPort) -> tuple[Rule, ...]:
    own = (address for address in own_addresses(port) if isinstance(address, IPv6Address))
    return (*((_target(address), Verdict.RETURN) for address in own), _SPOOFED)


def _asking(address: IPAddress) -> tuple[Match, ...]:
    if isinstance(address, IPv4Address):
        return (Match(Field.ARP_DESTINATION, Comparison.IS, str(address)),)
    return (_SOLICITATION, _target(address))


def _concerning(address: IPAddress, verdict: Verdict) -> tuple[Rule, ...]:
    """Who asks for the address, and what is for it."""
    return (*_asking(address), verdict), (Match(DESTINATION[Family.of(address)], Comparison.IS, str(address)), verdict)


def _target(address: IPv6Address) -> Match:
    return Match(_TARGET, Comparison.IS, f"0x{int(address):x}")


def _from(port: BridgedPort) -> Match:
    return Match(Field.INPUT_LINK, Comparison.IS, port.ifname)


def _has_ipv6(port: BridgedPort) -> bool:
    return any(interface.version == 6 for interface in port.addresses)


def _filter(name: str, hook: Hook, priority: Priority, *rules: Rule) -> NftChain:
    return NftChain(name=name, type=ChainType.FILTER, hook=hook, priority=priority, rules=rules)
