"""By which addresses the nodes reach each other for the networks of ports: pure, from the cluster's Nodes.

    Nodes (watched) ─► plan_underlay ─► Underlay ─► flood entries, and whose VXLAN packets are let in

One address stands for each node: its first InternalIP of the family around VXLAN. That family is IPv4 where the node
has it, as with the mesh of the EIP gateways, since all nodes must choose alike; a node that lacks it is no peer.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from coil.crd.builtin import INTERNAL_IP, Node
from coil.crd.names import NodeName
from coil.kernel.family import Family, IPAddress


class UnderlayError(Exception):
    """The node cannot take part in networks of ports; the sentence says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Underlay:
    """`local` is this node's address, `peers` those of all others. All of one family."""

    local: IPAddress
    peers: frozenset[IPAddress]


def internal_addresses(node: Node) -> tuple[IPAddress, ...]:
    """The node's InternalIPs, as far as they can be read and could be a host's, IPv4 first."""
    found = (
        address
        for address in node.addresses(INTERNAL_IP)
        if not (address.is_loopback or address.is_multicast or address.is_unspecified or address.is_link_local)
    )
    return tuple(sorted(found, key=Family.of))


def plan_underlay(nodes: Iterable[Node], *, own: NodeName) -> Underlay:
    """What this node is to know of all. Raises UnderlayError while the API server has no address of this one."""
    addresses = {NodeName(node.metadata.name): internal_addresses(node) for node in nodes}
    mine = addresses.pop(own, ())
    if not mine:
        raise UnderlayError(f"the Node {own} has no {INTERNAL_IP} yet, so no network of ports can lead to other nodes")
    local = mine[0]
    firsts = (_first(theirs, Family.of(local)) for theirs in addresses.values())
    # Never one's own: what is flooded would come back.
    return Underlay(local=local, peers=frozenset(peer for peer in firsts if peer is not None) - set(mine))


def _first(addresses: Iterable[IPAddress], family: Family) -> IPAddress | None:
    return next((address for address in addresses if Family.of(address) is family), None)
