"""The mesh as one node sees it: its own tunnel, its peers, and the marks that lead to them.

Tunnels of other nodes are peers as soon as they are complete, whatever their phase: a node that is not ready may be so
for reasons that do not concern its packets, and only the controller's placement decides where traffic goes.

The plans are pure; `MeshSync` carries them out.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.crd.egress_tunnel import EgressTunnel, EgressTunnelStatus
from coil.crd.names import NodeName
from coil.eip.tunnel_plan import Peer, parse_mark
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, MacAddress, ParentLink
from coil.kernel.vxlan import Vxlan, vxlan_mtu
from coil.netlink.error import NetlinkError
from coil_egress_agent.eip.kernel import KERNEL_ERRORS, Overlay, bounded, sentence
from coil_egress_agent.eip.node_assignment import parse_address
from coil_egress_agent.eip.tunnel_report import MeshReport, TunnelReporter

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
    addresses = _parse_addresses(status.node_addresses)
    if not addresses:
        raise MeshError("the EgressTunnel of this node has no nodeAddresses yet")
    return tuple(sorted(addresses, key=Family.of))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshOptions:
    """What the settings say of the tunnel's link. `vni` and `port` are the same on all nodes."""

    vni: int
    port: int
    checksum_offload: bool = True


def plan_tunnel(status: EgressTunnelStatus, *, underlay: IPAddress, parent: ParentLink, options: MeshOptions) -> Vxlan:
    """This node's own end. Raises MeshError where the controller has not given what it takes."""
    end = status.tunnel
    addresses = _parse_addresses((end.ipv4, end.ipv6))
    if not addresses or not _is_mac(end.mac):
        raise MeshError("the EgressTunnel of this node has no addresses yet")
    return Vxlan(
        name=DEVICE,
        vni=options.vni,
        port=options.port,
        mac=MacAddress(end.mac.lower()),
        mtu=vxlan_mtu(parent.mtu, Family.of(underlay)),
        local=underlay,
        parent=parent.name,
        addresses=tuple(ip_interface(address) for address in addresses),
        checksum_offload=options.checksum_offload,
    )


def plan_marks(peers: Iterable[Peer], nodes: Collection[NodeName] | None) -> dict[int, tuple[IPAddress, ...]]:
    """From mark to tunnel addresses, of the peers that are among `nodes`; None: of all."""
    return {peer.mark: peer.tunnel for peer in peers if nodes is None or peer.node in nodes}


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
    addresses = _parse_addresses((status.tunnel.ipv4, status.tunnel.ipv6))
    node_addresses = _parse_addresses(status.node_addresses)
    # The node's own word counts only for which of the Node's addresses it is: packets for it go there.
    parent = tuple(address for address in parse_parent(status) if address in node_addresses)
    if mark is None or not addresses or not parent or not _is_mac(status.tunnel.mac):
        return None
    return Peer(
        node=NodeName(tunnel.metadata.name),
        mark=mark,
        mac=MacAddress(status.tunnel.mac.lower()),
        tunnel=addresses,
        parent=parent,
        addresses=node_addresses,
    )


def _parse_addresses(texts: Iterable[str]) -> tuple[IPAddress, ...]:
    return tuple(address for text in texts if (address := parse_address(text)) is not None)


def _is_mac(text: str) -> bool:
    octets = text.split(":")
    try:
        return len(octets) == _MAC_OCTETS and all(len(octet) == 2 and int(octet, 16) >= 0 for octet in octets)
    except ValueError:
        return False


class MeshSync:
    """Keeps this node's end of the mesh: tunnel and peers in the kernel, and the report in the EgressTunnel's status.

    Failures are not raised: the peers that the kernel has stay in use, the rest of the work continues, and the next
    `sync` tries again.

    `trouble` says why the last `sync` failed, "" if it did not; `remade` counts how often the tunnel was made anew,
    after which it knows no marks.
    """

    def __init__(
        self, overlay: Overlay, reporter: TunnelReporter, *, options: MeshOptions, log: FilteringBoundLogger
    ) -> None:
        self._overlay = overlay
        self._reporter = reporter
        self._options = options
        self._log = log
        self._status: EgressTunnelStatus | None = None
        self._parent: ParentLink | None = None
        self._vxlan: Vxlan | None = None
        self._peers: tuple[Peer, ...] | None = None
        self.trouble = "not tried yet"
        self.remade = 0

    @property
    def working(self) -> bool:
        """The tunnel is there: marks may lead into it."""
        return self._vxlan is not None

    async def sync(
        self, own: EgressTunnel | None, peers: Sequence[Peer], *, carrier: bool, look: bool
    ) -> tuple[Peer, ...]:
        """Make tunnel and peers what they are to be; returns the peers that the kernel has. With `look` the kernel is
        asked whatever was done before. `carrier`: the node may be given EIPs, and has to be able to answer for them.
        """
        look |= bool(self.trouble)
        try:
            if own is None:
                raise MeshError("waiting for the EgressTunnel of this node")
            vxlan = await self._own_end(own.status, carrier=carrier, look=look)
            remade = False
            if look or vxlan != self._vxlan:
                remade = await bounded(self._overlay.ensure_tunnel(vxlan))
                self.remade += remade
                self._vxlan = vxlan
            family = Family.of(vxlan.local)
            reachable = tuple(peer for peer in peers if peer.overlay(family) is not None)
            if look or remade or reachable != self._peers:
                ends = [end for peer in reachable if (end := peer.overlay(family)) is not None]
                await bounded(self._overlay.sync_peers(ends))
                self._peers = reachable
        except (MeshError, ValueError, *KERNEL_ERRORS) as error:
            text = sentence(error)
            report = self._log.debug if text == self.trouble else self._log.warning
            report("the mesh cannot be made", error=text)
            self.trouble = text
            self._reporter.tell(MeshReport(working=False, parent=self._parent))
        else:
            if self.trouble:
                self._log.info("the mesh is there", parent=str(vxlan.parent), local=str(vxlan.local), peers=len(peers))
            self.trouble = ""
            self._reporter.tell(MeshReport(working=True, parent=self._parent))
        return self._peers or ()

    async def _own_end(self, status: EgressTunnelStatus, *, carrier: bool, look: bool) -> Vxlan:
        choices = underlay_choices(status)
        if look or self._parent is None or self._status is None or choices != underlay_choices(self._status):
            self._parent = await self._find_parent(choices)
            self._status = status
        underlay = next(address for address in choices if self._parent.has(address))
        vxlan = plan_tunnel(status, underlay=underlay, parent=self._parent, options=self._options)
        if look or vxlan != self._vxlan:
            try:
                await bounded(self._overlay.ensure_sysctls({Family.of(address) for address in vxlan.addresses}))
            except NetlinkError as error:
                # A node that carries nothing needs nobody to ask for its addresses.
                if carrier:
                    raise
                self._log.info("this node could carry no addresses", error=str(error))
        return vxlan

    async def _find_parent(self, choices: Sequence[IPAddress]) -> ParentLink:
        """The link of the first of the node's addresses that is on one."""
        for address in choices[:-1]:
            try:
                return await bounded(self._overlay.parent_of(address))
            except NetlinkError:
                continue
        return await bounded(self._overlay.parent_of(choices[-1]))
