"""A host of a segment as a node of the mesh: the agent's own part that makes it, on the real kernel, without an API
server. What it reports is what its EgressTunnel says to the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address
from typing import Final

import msgspec
import structlog

from coil.crd.egress_tunnel import EgressTunnel, EgressTunnelStatus, TunnelEnd, TunnelParent
from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.eip_table import EipTableOptions, plan_eip_tables
from coil.eip.tunnel_plan import Peer, render_mark, tunnel_mac
from coil.kernel.family import Family, IPAddress
from coil.kernel.wireguard import WIREGUARD_LINK, WireGuardPeer
from coil.netlink.overlay import OverlayNetwork
from coil.nft.element_sync import load_elements
from coil_egress_agent.eip.mesh import MeshOptions, MeshSync, plan_marks
from coil_egress_agent.eip.tunnel_report import MeshReport, TunnelReporter, plan_report
from integration.netns.segment import Host

PORT: Final = 7789
WIREGUARD_PORT: Final = 7790
ENCRYPTED: Final = MeshOptions(vni=100, port=PORT, wireguard_port=WIREGUARD_PORT)
PLAIN: Final = MeshOptions(vni=100, port=PORT)
_LOG: Final = structlog.get_logger()


class _Reports(TunnelReporter):
    """Keeps what it is told."""

    last = MeshReport(working=False)

    def tell(self, report: MeshReport) -> None:
        self.last = report


@dataclass
class MeshNode:
    """`underlay` is the family of the Node's address. Tunnel addresses are 172.31.0.n and fd11::n. `key` is what it
    reports instead of its own key.
    """

    host: Host
    overlay: OverlayNetwork
    underlay: Family = Family.IPV4
    options: MeshOptions = ENCRYPTED
    peers: tuple[Peer, ...] = ()
    key: str = ""
    mesh: MeshSync = field(init=False)

    def __post_init__(self) -> None:
        self._reports = _Reports(_refuse, lambda: None, node=self.name, log=_LOG)
        self.mesh = MeshSync(self.overlay, self._reports, options=self.options, log=_LOG)

    @property
    def name(self) -> NodeName:
        return NodeName(f"n{self.host.number}")

    @property
    def address(self) -> IPAddress:
        return self.host.ipv4 if self.underlay is Family.IPV4 else self.host.ipv6

    def inside(self, family: Family) -> IPAddress:
        """An address of the node's that others reach through the tunnel, after `lead_to`."""
        return (IPv4Address("10.9.0.0") if family is Family.IPV4 else IPv6Address("fd09::")) + self.host.number

    def lead_to(self, other: "MeshNode") -> None:
        """Have packets for what is inside the other go there through the tunnel, from what is inside this node.

        Not by the other's mark: older kernels look for the way around the tunnel by the mark as well.
        """
        end = other.tunnel.status.tunnel
        for family, gateway in ((Family.IPV4, end.ipv4), (Family.IPV6, end.ipv6)):
            own, wanted = self.inside(family), other.inside(family)
            nodad = ["nodad"] if own.version == 6 else []
            self.host.netns.ip("address", "replace", f"{own}/{own.max_prefixlen}", "dev", "lo", *nodad)
            way = ["via", gateway, "dev", "egress.vxlan", "onlink", "src", str(own)]
            self.host.netns.ip("route", "replace", f"{wanted}/{wanted.max_prefixlen}", *way)

    @property
    def tunnel(self) -> EgressTunnel:
        """As the API server would have it."""
        number = self.host.number
        end = TunnelEnd(ipv4=f"172.31.0.{number}", ipv6=f"fd11::{number:x}", mac=tunnel_mac(self.name))
        status = EgressTunnelStatus(tunnel=end, mark=render_mark(number), node_addresses=(str(self.address),))
        bare = EgressTunnel(metadata=ObjectMeta(name=self.name, resource_version="1"), status=status)
        patch = plan_report(bare, self._reports.last, now=datetime.now(UTC))
        if patch is None:
            return bare
        said = patch["status"].get("tunnel", {})
        parent = msgspec.convert(said.get("parent", {}), TunnelParent)
        end = msgspec.structs.replace(end, parent=parent, public_key=self.key or said.get("publicKey", ""))
        return msgspec.structs.replace(bare, status=msgspec.structs.replace(status, tunnel=end))

    async def meet(self, others: Sequence["MeshNode"], *, look: bool = False) -> None:
        """A round of the agent's, with what these others have reported."""
        self.peers = await self.mesh.choose_peers([node.tunnel for node in others], node=self.name)
        reached = await self.mesh.sync(self.tunnel, self.peers, carrier=False, look=look)
        assert self.mesh.trouble == ""
        await self.overlay.sync_marks(plan_marks(reached, None))

    def wireguard_peers(self) -> list[WireGuardPeer]:
        """As its link knows them."""
        ends = (peer.wireguard(self.underlay, port=WIREGUARD_PORT) for peer in self.peers)
        return [end for end in ends if end is not None]

    def load_tables(self) -> None:
        """The agent's tables, for these peers and no policies."""
        wireguard = WIREGUARD_LINK if self.mesh.encrypted else None
        index = DataPlaneIndex(clock=lambda: 0.0)
        index.set_own(self.name)
        index.set_peers(self.peers)
        tables = plan_eip_tables(EipTableOptions(port=PORT, wireguard=wireguard))
        self.host.netns.call(lambda: load_elements(tables, index.elements()))


async def _refuse(name: str, _patch: object) -> EgressTunnel:
    raise AssertionError(name)


async def meet_all(*nodes: MeshNode, look: bool = False) -> None:
    """Each makes its end, then each learns of the others."""
    for node in nodes:
        await node.meet((), look=look)
    for node in nodes:
        await node.meet(nodes)
