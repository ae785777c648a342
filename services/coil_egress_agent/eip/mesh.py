"""The mesh as one node sees it: its own tunnel, its peers, and the marks that lead to them.

Tunnels of other nodes are peers as soon as they are complete, whatever their phase: a node that is not ready may be so
for reasons that do not concern its packets, and only the controller's placement decides where traffic goes.

Where the mesh is encrypted, what the tunnels send to each other goes through a link of WireGuard, from tunnel address
to tunnel address. Each node makes its key and tells the public one in the status of its tunnel. A node that has told
none is no peer then, nor is one that has told its key a peer of nodes that do not encrypt: nothing goes unencrypted by
mistake.

The plans are pure; `MeshSync` carries them out.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_interface
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.crd.egress_tunnel import EgressTunnel, EgressTunnelStatus
from coil.crd.names import NodeName
from coil.eip.tunnel_plan import Peer, parse_mark
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, MacAddress, ParentLink
from coil.kernel.vxlan import OverlayPeer, Vxlan, vxlan_mtu
from coil.kernel.wireguard import (
    WIREGUARD_LINK,
    PublicKey,
    WireGuard,
    WireGuardPeer,
    parse_public_key,
    wireguard_mtu,
)
from coil.netlink.error import NetlinkError
from coil_egress_agent.eip.kernel import KERNEL_ERRORS, Overlay, bounded, sentence
from coil_egress_agent.eip.node_assignment import parse_address
from coil_egress_agent.eip.tunnel_report import MeshReport, TunnelReporter

DEVICE: Final = LinkName("egress.vxlan")

_MAC_OCTETS: Final = 6


class MeshError(Exception):
    """This node cannot take part yet; the sentence says what is missing."""


def plan_peers(
    tunnels: Iterable[EgressTunnel],
    *,
    node: NodeName,
    encrypted: bool = False,
    owners: Mapping[PublicKey, IPAddress] | None = None,
) -> tuple[Peer, ...]:
    """The other nodes' tunnels that are complete. Of two with the same mark or hardware address the first by name
    counts: the controller is about to mend it. Of two with the same key, the one with the tunnel address that
    the key has in `owners`: nobody can take the place of another by naming its key.
    """

    def rank(peer: Peer) -> tuple[bool, NodeName]:
        return owned.isdisjoint((peer.key, address) for address in peer.tunnel), peer.node

    peers: list[Peer] = []
    taken: set[object] = set()
    owned = set[tuple[PublicKey | None, IPAddress]]((owners or {}).items())
    found = (peer for tunnel in tunnels if (peer := _peer(tunnel, encrypted=encrypted)) is not None)
    for peer in sorted(found, key=rank):
        marks = {peer.mark, peer.mac, *peer.tunnel, *((peer.key,) if peer.key else ())}
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
    """What the settings say of the tunnel's link. All but the last are the same on all nodes. `wireguard_port` is where
    the link that encrypts listens; None: nothing is encrypted.
    """

    vni: int
    port: int
    wireguard_port: int | None = None
    checksum_offload: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshEnd:
    """This node's own end: the tunnel's link, and the one that carries it where the mesh is encrypted. `underlay` is
    the family around everything.
    """

    vxlan: Vxlan
    underlay: Family
    wireguard: WireGuard | None = None

    def overlay_peers(self, peers: Iterable[Peer]) -> list[OverlayPeer]:
        """What the tunnel's link is to know of those that it can reach."""
        ends = (peer.overlay(self.underlay) for peer in peers)
        return [end for end in ends if end is not None]

    def wireguard_peers(self, peers: Iterable[Peer]) -> list[WireGuardPeer]:
        """What the link that encrypts is to know of them."""
        if self.wireguard is None:
            return []
        ends = (peer.wireguard(self.underlay, port=self.wireguard.port) for peer in peers)
        return [end for end in ends if end is not None]


def plan_end(status: EgressTunnelStatus, *, underlay: IPAddress, parent: ParentLink, options: MeshOptions) -> MeshEnd:
    """Raises MeshError where the controller has not given what it takes."""
    end = status.tunnel
    addresses = _parse_addresses((end.ipv4, end.ipv6))
    if not addresses or not _is_mac(end.mac):
        raise MeshError("the EgressTunnel of this node has no addresses yet")
    outer = Family.of(underlay)
    local, mtu, wireguard = underlay, parent.mtu, None
    if options.wireguard_port is not None:
        local = addresses[0]
        if not isinstance(local, IPv4Address):
            raise MeshError("the EgressTunnel of this node has no IPv4 address, which the encrypted mesh takes")
        mtu = wireguard_mtu(parent.mtu, outer)
        wireguard = WireGuard(name=WIREGUARD_LINK, port=options.wireguard_port, mtu=mtu)
    vxlan = Vxlan(
        name=DEVICE,
        vni=options.vni,
        port=options.port,
        mac=MacAddress(end.mac.lower()),
        mtu=vxlan_mtu(mtu, Family.of(local)),
        local=local,
        parent=parent.name,
        addresses=tuple(ip_interface(address) for address in addresses),
        checksum_offload=options.checksum_offload,
    )
    return MeshEnd(vxlan=vxlan, underlay=outer, wireguard=wireguard)


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


def _peer(tunnel: EgressTunnel, *, encrypted: bool) -> Peer | None:
    status = tunnel.status
    mark = parse_mark(status.mark)
    addresses = _parse_addresses((status.tunnel.ipv4, status.tunnel.ipv6))
    node_addresses = _parse_addresses(status.node_addresses)
    # The node's own word counts only for which of the Node's addresses it is: packets for it go there.
    parent = tuple(address for address in parse_parent(status) if address in node_addresses)
    key = parse_public_key(status.tunnel.public_key)
    if mark is None or not addresses or not parent or not _is_mac(status.tunnel.mac):
        return None
    if encrypted != bool(status.tunnel.public_key) or (encrypted and key is None):
        return None
    return Peer(
        node=NodeName(tunnel.metadata.name),
        mark=mark,
        mac=MacAddress(status.tunnel.mac.lower()),
        tunnel=addresses,
        parent=parent,
        addresses=addresses[:1] if encrypted else node_addresses,
        key=key,
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
    """Keeps this node's end of the mesh: links and peers in the kernel, and the report in the EgressTunnel's status.

    Failures are not raised: the peers that the kernel has stay in use, the rest of the work continues, and the next
    `sync` tries again.

    `hold` says why nothing may be made yet, "" if it may. `trouble` says why the last `sync` failed, "" if it did not;
    `remade` counts how often the tunnel was made anew, after which it knows no marks.
    """

    def __init__(
        self,
        overlay: Overlay,
        reporter: TunnelReporter,
        *,
        options: MeshOptions,
        log: FilteringBoundLogger,
        hold: Callable[[], str] = lambda: "",
    ) -> None:
        self._overlay = overlay
        self._reporter = reporter
        self._options = options
        self._log = log
        self._hold = hold
        self._status: EgressTunnelStatus | None = None
        self._parent: ParentLink | None = None
        self._owners: dict[PublicKey, IPAddress] | None = None
        self._end: MeshEnd | None = None
        self._key: PublicKey | None = None
        self._peers: tuple[Peer, ...] | None = None
        self.trouble = "not tried yet"
        self.remade = 0

    @property
    def working(self) -> bool:
        """The tunnel is there: marks may lead into it."""
        return self._end is not None

    @property
    def encrypted(self) -> bool:
        """Only nodes with keys are peers."""
        return self._options.wireguard_port is not None

    async def choose_peers(self, tunnels: Iterable[EgressTunnel], *, node: NodeName) -> tuple[Peer, ...]:
        """Who the peers are to be. A key stays with the node that had it, even if an earlier process gave it that."""
        if self._owners is None:
            self._owners = await self._read_owners()
        peers = plan_peers(tunnels, node=node, encrypted=self.encrypted, owners=self._owners)
        self._owners = {peer.key: peer.tunnel[0] for peer in peers if peer.key is not None}
        return peers

    async def _read_owners(self) -> dict[PublicKey, IPAddress]:
        if not self.encrypted:
            return {}
        try:
            return {peer.key: peer.address for peer in await bounded(self._overlay.read_wireguard_peers())}
        except KERNEL_ERRORS as error:
            self._log.warning("the former peers are not known", error=sentence(error))
            return {}

    async def sync(
        self, own: EgressTunnel | None, peers: Sequence[Peer], *, carrier: bool, look: bool
    ) -> tuple[Peer, ...]:
        """Make links and peers what they are to be; returns the peers that the kernel has. With `look` the kernel is
        asked whatever was done before. `carrier`: the node may be given EIPs, and has to be able to answer for them.
        """
        look |= bool(self.trouble)
        try:
            if held := self._hold():
                raise MeshError(held)
            if own is None:
                raise MeshError("waiting for the EgressTunnel of this node")
            end = await self._own_end(own.status, carrier=carrier, look=look)
            remade = False
            if look or end != self._end:
                remade = await self._ensure_links(end)
                self._end = end
            reachable = tuple(peer for peer in peers if end.overlay_peers((peer,)))
            if look or remade or reachable != self._peers:
                if end.wireguard is not None:
                    await bounded(self._overlay.sync_wireguard_peers(end.wireguard_peers(reachable)))
                await bounded(self._overlay.sync_peers(end.overlay_peers(reachable)))
                self._peers = reachable
        except (MeshError, ValueError, *KERNEL_ERRORS) as error:
            text = sentence(error)
            report = self._log.debug if text == self.trouble else self._log.warning
            report("the mesh cannot be made", error=text)
            self.trouble = text
            self._tell(working=False)
        else:
            if self.trouble:
                vxlan = end.vxlan
                self._log.info("the mesh is there", parent=str(vxlan.parent), local=str(vxlan.local), peers=len(peers))
            self.trouble = ""
            self._tell(working=True)
        return self._peers or ()

    def _tell(self, *, working: bool) -> None:
        self._reporter.tell(MeshReport(working=working, parent=self._parent, key=self._key))

    async def _ensure_links(self, end: MeshEnd) -> bool:
        """Whether the tunnel was made anew, and knows no peers."""
        self._key = None if end.wireguard is None else await bounded(self._overlay.ensure_wireguard(end.wireguard))
        remade = await bounded(self._overlay.ensure_tunnel(end.vxlan))
        self.remade += remade
        if end.wireguard is None:
            # After the tunnel, which no longer sends by it.
            await bounded(self._overlay.remove_wireguard())
        return remade

    async def _own_end(self, status: EgressTunnelStatus, *, carrier: bool, look: bool) -> MeshEnd:
        choices = underlay_choices(status)
        if look or self._parent is None or self._status is None or choices != underlay_choices(self._status):
            self._parent = await self._find_parent(choices)
            self._status = status
        underlay = next(address for address in choices if self._parent.has(address))
        end = plan_end(status, underlay=underlay, parent=self._parent, options=self._options)
        if look or end != self._end:
            try:
                await bounded(self._overlay.ensure_sysctls({Family.of(address) for address in end.vxlan.addresses}))
            except NetlinkError as error:
                # A node that carries nothing needs nobody to ask for its addresses.
                if carrier:
                    raise
                self._log.info("this node could carry no addresses", error=str(error))
        return end

    async def _find_parent(self, choices: Sequence[IPAddress]) -> ParentLink:
        """The link of the first of the node's addresses that is on one."""
        for address in choices[:-1]:
            try:
                return await bounded(self._overlay.parent_of(address))
            except NetlinkError:
                continue
        return await bounded(self._overlay.parent_of(choices[-1]))
