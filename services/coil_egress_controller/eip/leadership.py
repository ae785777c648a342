"""What a leader does in its term for floating egress addresses: who is told of what, and how long it is gathered.

The other half of `leadership`, run beside it. A term begins with everything that is there, told as new, and its end
leaves nothing running.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from coil.crd.builtin import Namespace, Node
from coil.crd.egress_endpoint_slice import EgressEndpointSlice
from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.egress_tunnel import EgressTunnel
from coil.crd.resource import object_key
from coil.kube.lease_lock import Lease
from coil.reconcile.backoff import Backoff
from coil.reconcile.controller import Controller, Reconcile
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import RETRY_BACKOFF, WorkQueue
from coil.reconcile.term import TermSource
from coil_egress_controller.eip import (
    gateway_reconciler,
    policy_status_reconciler,
    slice_reconciler,
    tunnel_phase_reconciler,
    tunnel_reconciler,
)
from coil_egress_controller.eip.deps import EipDeps
from coil_egress_controller.eip.lease_monitor import REVOCATION_BACKOFF
from coil_egress_controller.eip.node_fact import is_ready
from coil_egress_controller.eip.pod import EipPod
from coil_egress_controller.eip.reconcilers import EipQueues, EipReconcilers

GATEWAY_WORKERS = 4
TENURE_WORKERS = 16
POLICY_WORKERS = 4
SLICE_WORKERS = 4
PHASE_WORKERS = 2

GATEWAY_BACKOFF = Backoff(base=0.02, cap=5.0)
"""Addresses wait for it; and a gateway has one document, so there are never many to retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EipSources:
    """Who tells of changes, by kind."""

    nodes: TermSource[Node]
    namespaces: TermSource[Namespace]
    pods: TermSource[EipPod]
    tunnels: TermSource[EgressTunnel]
    gateways: TermSource[EgressGateway]
    policies: TermSource[EgressGatewayPolicy]
    slices: TermSource[EgressEndpointSlice]
    leases: TermSource[Lease]

    def end_term(self) -> None:
        every: tuple[TermSource[Any], ...] = (
            *(self.nodes, self.namespaces, self.pods, self.tunnels),
            *(self.gateways, self.policies, self.slices, self.leases),
        )
        for source in every:
            source.end_term()


class EipLeadership:
    """`sources` stand on the caches of the workplace; `synced` returns when these are complete."""

    def __init__(
        self,
        place: EipDeps,
        *,
        sources: EipSources,
        synced: Callable[[], Awaitable[None]],
        metrics: ReconcileMetrics,
    ) -> None:
        self._place = place
        self._sources = sources
        self._synced = synced
        self._metrics = metrics

    async def lead(self) -> None:
        """Work until cancelled. May be called again after that."""
        # Not before the term: what else this process leads does not wait for kinds that may not be served yet.
        await self._synced()
        with ExitStack() as term:
            term.callback(self._sources.end_term)
            queues = EipQueues(
                gateways=self._queue(term, "egressgateway", GATEWAY_BACKOFF),
                tenures=self._queue(term, "gatewaylease", REVOCATION_BACKOFF),
                policies=self._queue(term, "egressgatewaypolicy"),
                slices=self._queue(term, "egressendpointslice"),
                mesh=self._queue(term, "egresstunnel"),
                phases=self._queue(term, "tunnelphase"),
            )
            team = EipReconcilers.assemble(self._place, queues)
            controllers = self._controllers(team, queues)
            async with asyncio.TaskGroup() as group:
                group.create_task(team.keeper.run(), name="leases")
                for controller in controllers:
                    group.create_task(controller.run(), name=controller.name)
                group.create_task(self._sweep(queues), name="eip sweep")

    def _controllers(self, team: EipReconcilers, queues: EipQueues) -> list[Controller]:
        """Who does what, and what makes them do it."""
        sources = self._sources
        # The books hear of everything before those who look things up in them.
        sources.gateways.subscribe(team.written.gateways.observe)
        sources.policies.subscribe(team.written.policies.observe)
        sources.slices.subscribe(team.written.slices.observe)
        sources.tunnels.subscribe(team.written.tunnels.observe)
        for policy in self._place.view.policies.items():
            team.endpoints.enter(policy)

        gateways = self._controller(queues.gateways, team.gateways.reconcile, GATEWAY_WORKERS)
        batch_window = gateway_reconciler.SETTLE_SECONDS
        gateways.watch(sources.gateways, team.selections.change_gateway, batch_window=batch_window)
        gateways.watch(sources.nodes, team.selections.change_node, batch_window=batch_window)
        gateways.watch(sources.policies, team.choices.change_policy, batch_window=batch_window)
        gateways.watch(sources.gateways, team.choices.change_gateway, batch_window=batch_window)
        gateways.watch(sources.namespaces, team.choices.change_namespace, batch_window=batch_window)

        def gateways_of_tunnel(old: EgressTunnel | None, new: EgressTunnel | None) -> Iterable[str]:
            if (present := new or old) is not None and _phase(old) != _phase(new):
                yield from team.selections.gateways(present.metadata.name)

        gateways.watch(sources.tunnels, gateways_of_tunnel, batch_window=batch_window)
        sources.leases.subscribe(team.keeper.change_lease)

        policies = self._controller(queues.policies, team.policies.reconcile, POLICY_WORKERS)
        policies.watch(
            sources.policies, team.policies.changed_policies, batch_window=policy_status_reconciler.SETTLE_SECONDS
        )

        slices = self._controller(queues.slices, team.slices.reconcile, SLICE_WORKERS)
        batch_window = slice_reconciler.SETTLE_SECONDS
        slices.watch(sources.pods, team.slices.changed_pods, batch_window=batch_window)
        slices.watch(sources.policies, team.slices.changed_policies, batch_window=batch_window)
        slices.watch(sources.slices, team.slices.changed_slices, batch_window=batch_window)

        mesh = self._controller(queues.mesh, team.tunnels.reconcile, 1)
        batch_window = tunnel_reconciler.SETTLE_SECONDS
        mesh.watch(sources.nodes, team.tunnels.changed_nodes, batch_window=batch_window)
        mesh.watch(sources.tunnels, team.tunnels.changed_tunnels, batch_window=batch_window)

        phases = self._controller(queues.phases, team.phases.reconcile, PHASE_WORKERS)
        batch_window = tunnel_phase_reconciler.SETTLE_SECONDS
        phases.watch(sources.tunnels, team.phases.changed_tunnels, batch_window=batch_window)
        phases.watch(sources.gateways, team.phases.changed_gateways, batch_window=batch_window)
        phases.watch(sources.nodes, _nodes_of_other_readiness, batch_window=batch_window)

        tenures = self._controller(queues.tenures, team.keeper.reconcile, TENURE_WORKERS)
        return [gateways, tenures, policies, slices, mesh, phases]

    def _queue(self, term: ExitStack, name: str, backoff: Backoff = RETRY_BACKOFF) -> WorkQueue:
        queue = WorkQueue(name, metrics=self._metrics, backoff=backoff, clock=self._place.clock)
        term.callback(queue.close)
        return queue

    def _controller(self, queue: WorkQueue, reconcile: Reconcile, workers: int) -> Controller:
        log = self._place.log
        return Controller(queue.name, reconcile, queue=queue, metrics=self._metrics, log=log, workers=workers)

    async def _sweep(self, queues: EipQueues) -> None:
        """What no event tells of: what was missed, or somebody has written into a status."""
        view = self._place.view
        while True:
            await asyncio.sleep(self._place.policy.resync)
            policies = [object_key(policy.metadata) for policy in view.policies.items()]
            self._place.log.info("comparing everything", policies=len(policies))
            queues.mesh.add(tunnel_reconciler.MESH)
            for queue, keys in (
                (queues.gateways, [gateway.metadata.name for gateway in view.gateways.items()]),
                (queues.policies, policies),
                (queues.slices, policies),
                (queues.phases, [tunnel.metadata.name for tunnel in view.tunnels.items()]),
            ):
                for key in keys:
                    queue.add(key)


def _phase(tunnel: EgressTunnel | None) -> str | None:
    return None if tunnel is None else tunnel.status.phase


def _nodes_of_other_readiness(old: Node | None, new: Node | None) -> Iterable[str]:
    if old is not None and new is not None and is_ready(old) != is_ready(new):
        yield new.metadata.name
