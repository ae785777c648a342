"""Keeps this node's end of the mesh: tunnel and peers in the kernel, and the report in the EgressTunnel's status.

Failures are not raised: the peers that the kernel has stay in use, the rest of the work continues, and the next `sync`
tries again.
"""

from collections.abc import Sequence

from structlog.typing import FilteringBoundLogger

from coil.crd.egress_tunnel import EgressTunnel, EgressTunnelStatus
from coil.eip.tunnel_plan import Peer
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import ParentLink
from coil.kernel.vxlan import Vxlan
from coil.netlink.error import NetlinkError
from coil_egress_agent.eip.kernel import KERNEL_ERRORS, Overlay, bounded, sentence
from coil_egress_agent.eip.mesh import MeshError, plan_tunnel, underlay_choices
from coil_egress_agent.eip.tunnel_report import MeshReport, TunnelReporter


class MeshSync:
    """`trouble` says why the last `sync` failed, "" if it did not; `remade` counts how often the tunnel was made anew,
    after which it knows no marks.
    """

    def __init__(
        self, overlay: Overlay, reporter: TunnelReporter, *, vni: int, port: int, log: FilteringBoundLogger
    ) -> None:
        self._overlay = overlay
        self._reporter = reporter
        self._vni = vni
        self._port = port
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
        vxlan = plan_tunnel(status, underlay=underlay, parent=self._parent, vni=self._vni, port=self._port)
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
