"""The mesh as one node sees it: its own tunnel, its peers, and the marks that lead to them. Pure.

Tunnels of other nodes are peers as soon as they are complete, whatever their phase: a node that is not ready may be so
for reasons that do not concern its packets, and only the controller's placement decides where traffic goes.
"""

from collections.abc import Collection, Iterable, Mapping
from ipaddress import ip_interface
from typing import Final

from coil.crd.egress_tunnel import EgressTunnel, EgressTunnelStatus
from coil.crd.names import NodeName
from coil.eip.tunnel_plan import Peer, parse_mark
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, MacAddress, ParentLink
from coil.kernel.vxlan import Vxlan, vxlan_mtu
from coil_egress_agent.eip.node_assignment import parse_address

DEVICE: Final = LinkName("egress.vxlan")

_MAC_OCTETS: Final = 6


class MeshError(Exception):
    """This node cannot take part yet; the sentence says what is missing."""


def plan_peers(tunnels: Iterable[EgressTunnel], *, node: NodeName) -> tuple[Peer, ...]:
    """The other nodes' tunnels that are complete. Of two with the same mark or hardware address the first by name
    counts: the controller is about to mend it.
    """
    peers: list[Peer] = []
    taken: set[object] = set()
    for tunnel in sorted(tunnels, key=lambda tunnel: tunnel.metadata.name):
        peer = _peer(tunnel)
        if peer is None:
            continue
        marks = {peer.mark, peer.mac, *peer.tunnel}
        if taken.isdisjoint(marks):
            taken |= marks
            if peer.node != node:
                peers.append(peer)
    return tuple(peers)


def underlay_choices(status: EgressTunnelStatus) -> tuple[IPAddress, ...]:
    """The node's own addresses that the mesh may use, at least one: IPv4 before IPv6, as all nodes must choose alike.

    Raises MeshError.
    """
    addresses = [address for text in status.node_addresses if (address := parse_address(text)) is not None]
    if not addresses:
        raise MeshError("the EgressTunnel of this node has no nodeAddresses yet")
    return tuple(sorted(addresses, key=Family.of))


def plan_tunnel(status: EgressTunnelStatus, *, underlay: IPAddress, parent: ParentLink, vni: int, port: int) -> Vxlan:
    """This node's own end. Raises MeshError where the controller has not given what it takes."""
    end = status.tunnel
    addresses = tuple(address for text in (end.ipv4, end.ipv6) if (address := parse_address(text)) is not None)
    if not addresses or not _is_mac(end.mac):
        raise MeshError("the EgressTunnel of this node has no addresses yet")
    return Vxlan(
        name=DEVICE,
        vni=vni,
        port=port,
        mac=MacAddress(end.mac.lower()),
        mtu=vxlan_mtu(parent.mtu, Family.of(underlay)),
        local=underlay,
        parent=parent.name,
        addresses=tuple(ip_interface(address) for address in addresses),
    )


def plan_marks(peers: Iterable[Peer], nodes: Collection[NodeName] | None) -> dict[int, tuple[IPAddress, ...]]:
    """From mark to tunnel addresses, of the peers that are among `nodes`; None: of all."""
    return {peer.mark: peer.tunnel for peer in peers if nodes is None or peer.node in nodes}


def parent_texts(parent: ParentLink) -> Mapping[str, str]:
    """`status.tunnel.parent` as it is written."""
    texts = {"name": str(parent.name), "ipv4": "", "ipv6": ""}
    for interface in parent.interfaces:
        key = f"ipv{interface.version}"
        texts[key] = texts[key] or str(interface)
    return texts


def parse_parent(status: EgressTunnelStatus) -> tuple[IPAddress, ...]:
    """The addresses of the link that carries a tunnel."""
    found: list[IPAddress] = []
    for text in (status.tunnel.parent.ipv4, status.tunnel.parent.ipv6):
        try:
            found.append(ip_interface(text).ip)
        except ValueError:
            continue
    return tuple(found)


def _peer(tunnel: EgressTunnel) -> Peer | None:
    status = tunnel.status
    mark = parse_mark(status.mark)
    texts = (status.tunnel.ipv4, status.tunnel.ipv6)
    addresses = tuple(address for text in texts if (address := parse_address(text)) is not None)
    parent = parse_parent(status)
    if mark is None or not addresses or not parent or not _is_mac(status.tunnel.mac):
        return None
    return Peer(
        node=NodeName(tunnel.metadata.name),
        mark=mark,
        mac=MacAddress(status.tunnel.mac.lower()),
        tunnel=addresses,
        parent=parent,
    )


def _is_mac(text: str) -> bool:
    octets = text.split(":")
    try:
        return len(octets) == _MAC_OCTETS and all(len(octet) == 2 and int(octet, 16) >= 0 for octet in octets)
    except ValueError:
        return False
