"""Writes the phase of a silent gateway node's tunnel, and corrects it when the node is back.

For people and other programs: nothing waits for it, and the gateways' statuses show it first. It is written once for
each lease term that a node has lost; when an agent overwrites it, because it is alive and cannot renew, that stays.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import Node
from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_tunnel import EGRESS_TUNNELS, EgressTunnel, TunnelPhase
from coil.crd.names import NodeName
from coil.eip.gateway_lease import GatewayLease
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, NotFoundError
from coil.manager.term import Channel, Term
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, Result
from coil.reconcile.own_write import OwnWrites
from coil_egress_controller.eip.node_fact import SILENT_PHASES, is_ready, select_phase

WORKERS: Final = 2
_BATCH_WINDOW: Final = 0.2


class TunnelPhaseReconciler:
    """Of one term. The keys are node names; `is_gateway` says whether some gateway selects the node."""

    def __init__(
        self,
        *,
        client: ApiClient,
        nodes: Cache[Node],
        tunnels: Cache[EgressTunnel],
        gateways: Cache[EgressGateway],
        lease_of: Callable[[str], GatewayLease | None],
        is_gateway: Callable[[str], bool],
        written: OwnWrites[EgressTunnel],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._tunnels = tunnels
        self._gateways = gateways
        self._lease_of = lease_of
        self._is_gateway = is_gateway
        self._written = written
        self._log = log
        self._reported: dict[str, int] = {}
        """By node, the term whose loss was last written."""

    def setup(self, term: Term, leases: Channel[NodeName], *, needs: Iterable[Cache[Any]], resync: float) -> None:
        """`leases` sends the nodes whose leases have changed; `needs` is what that and `is_gateway` read."""
        controller = term.controller("tunnelphase", self.reconcile, workers=WORKERS)
        controller.watch(self._tunnels, _changed_tunnels, batch_window=_BATCH_WINDOW)
        controller.watch(self._gateways, self._changed_gateways, batch_window=_BATCH_WINDOW)
        controller.watch(self._nodes, _changed_nodes, batch_window=_BATCH_WINDOW)
        controller.watch_channel(leases, lambda node: [node], batch_window=_BATCH_WINDOW)
        controller.needs(*needs)
        controller.resync(lambda: [tunnel.metadata.name for tunnel in self._tunnels.items()], every=resync)

    async def reconcile(self, name: str) -> Result:
        """Bring the phase in line. Raises ConflictError when somebody else has written in the meantime."""
        node, lease = self._nodes.get(name), self._lease_of(name) if self._is_gateway(name) else None
        tunnel = self._written.latest(name, self._tunnels.get(name))
        if node is None or tunnel is None:
            self._reported.pop(name, None)
            return DONE
        phase = select_phase(tunnel, node, lease)
        if phase == tunnel.status.phase:
            return DONE
        if phase in SILENT_PHASES and lease is not None:
            if tunnel.status.phase == TunnelPhase.READY and self._reported.get(name) == lease.term:
                return DONE
            self._reported[name] = lease.term
        body = {"metadata": {"resourceVersion": tunnel.metadata.resource_version}, "status": {"phase": phase}}
        try:
            written = await self._client.patch(EGRESS_TUNNELS, name, body, subresource="status")
        except ApiError as error:
            self._written.forget(name)
            self._reported.pop(name, None)
            if isinstance(error, NotFoundError):
                return DONE
            raise
        self._written.note(tunnel, written, cached=self._tunnels.get(name))
        self._log.info("phase changed", node=name, before=tunnel.status.phase, after=phase)
        return DONE

    def _changed_gateways(self, old: EgressGateway | None, new: EgressGateway | None) -> Iterable[str]:
        """Nodes that may be no gateways any more: nobody renews a lease for them, and their silence means nothing."""
        if old is not None and (new is None or old.spec.node_selector != new.spec.node_selector):
            silent = [each for each in self._tunnels.items() if each.status.phase in SILENT_PHASES]
            yield from (tunnel.metadata.name for tunnel in silent)


def _changed_tunnels(old: EgressTunnel | None, new: EgressTunnel | None) -> Iterable[str]:
    """A tunnel that this leader or an earlier one has called silent: perhaps it no longer is."""
    if new is not None and new.status.phase in SILENT_PHASES and (old is None or old.status != new.status):
        yield new.metadata.name


def _changed_nodes(old: Node | None, new: Node | None) -> Iterable[str]:
    """A node that became ready, or is no longer."""
    if old is not None and new is not None and is_ready(old) != is_ready(new):
        yield new.metadata.name
