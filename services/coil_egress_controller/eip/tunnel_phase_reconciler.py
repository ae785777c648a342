"""Says in the status of a silent gateway node's tunnel that it is silent, and takes that back.

For people and other programs: nothing waits for it, and the gateways' statuses say so first. It is written once for
each term that a node has lost; an agent that overwrites it, because it lives and cannot renew, is not argued with.
"""

from collections.abc import Callable, Iterable

from structlog.typing import FilteringBoundLogger

from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_tunnel import EGRESS_TUNNELS, EgressTunnel, TunnelPhase
from coil.eip.gateway_lease import GatewayLease
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, NotFoundError
from coil.reconcile.controller import DONE, Result
from coil_egress_controller.eip.node_fact import SILENT_PHASES, judge_phase
from coil_egress_controller.eip.own_write import OwnWrites
from coil_egress_controller.eip.view import EipView

SETTLE_SECONDS = 0.2


class TunnelPhaseReconciler:
    """Of one term. The keys are node names; `is_gateway` says whether some gateway selects the node."""

    def __init__(
        self,
        *,
        client: ApiClient,
        view: EipView,
        written: OwnWrites[EgressTunnel],
        tenure: Callable[[str], GatewayLease | None],
        is_gateway: Callable[[str], bool],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._view = view
        self._written = written
        self._tenure = tenure
        self._is_gateway = is_gateway
        self._log = log
        self._said: dict[str, int] = {}

    async def reconcile(self, name: str) -> Result:
        """Bring the phase in line. Raises ConflictError when somebody else has written meanwhile."""
        node, tenure = self._view.nodes.get(name), self._tenure(name) if self._is_gateway(name) else None
        tunnel = self._written.latest(name, self._view.tunnels.get(name))
        if node is None or tunnel is None:
            self._said.pop(name, None)
            return DONE
        phase = judge_phase(tunnel, node, tenure)
        if phase == tunnel.status.phase:
            return DONE
        if phase in SILENT_PHASES and tenure is not None:
            if tunnel.status.phase == TunnelPhase.READY and self._said.get(name) == tenure.term:
                return DONE
            self._said[name] = tenure.term
        body = {"metadata": {"resourceVersion": tunnel.metadata.resource_version}, "status": {"phase": phase}}
        try:
            written = await self._client.patch(EGRESS_TUNNELS, name, body, subresource="status")
        except ApiError as error:
            self._written.forget(name)
            self._said.pop(name, None)
            if isinstance(error, NotFoundError):
                return DONE
            raise
        self._written.note(tunnel, written, cached=self._view.tunnels.get(name))
        self._log.info("phase changed", node=name, before=tunnel.status.phase, after=phase)
        return DONE

    def changed_tunnels(self, old: EgressTunnel | None, new: EgressTunnel | None) -> Iterable[str]:
        """A tunnel that is said to be silent, by this leader or an earlier one: perhaps it is no longer."""
        if new is not None and new.status.phase in SILENT_PHASES and (old is None or old.status != new.status):
            yield new.metadata.name

    def changed_gateways(self, old: EgressGateway | None, new: EgressGateway | None) -> Iterable[str]:
        """Nodes that may be no gateways any more: nobody renews a lease for them, and their silence says nothing."""
        if old is not None and (new is None or old.spec.node_selector != new.spec.node_selector):
            silent = [each for each in self._view.tunnels.items() if each.status.phase in SILENT_PHASES]
            yield from (tunnel.metadata.name for tunnel in silent)
