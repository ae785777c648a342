"""What a leader does in its term: one controller per concern, and the periodic look for what events have missed.

In the flow: informers run in every replica and always; the election calls `lead` for as long as this replica is
the leader. A term begins with everything that is there, told as new, and its end leaves nothing running.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import (
    ClusterRoleBinding,
    Deployment,
    PodDisruptionBudget,
    Service,
    ServiceAccount,
)
from coil.crd.egress import Egress
from coil.crd.resource import HasMetadata, Resource, object_key
from coil.egress.router_container import RouterProgram
from coil.kube.api_client import ApiClient
from coil.reconcile.controller import Controller, Reconcile
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import WorkQueue
from coil.reconcile.term import TermSource
from coil_egress_controller.cluster_view import ClusterView
from coil_egress_controller.egress.egress_reconciler import EgressReconciler
from coil_egress_controller.egress.role_binding_reconciler import ROUTER_BINDING, RoleBindingReconciler
from coil_egress_controller.egress.service_account_reconciler import ServiceAccountReconciler

EGRESS_WORKERS = 4
WORKERS = 2

Lead: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Work for a term of leadership: until cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the reconcilers of a term share. `view` stands on caches that are synced; `clock` is monotonic seconds.

    `budgets` is the served version of PodDisruptionBudget, `program` what runs in router pods; `resync` is in seconds.
    """

    client: ApiClient
    view: ClusterView
    recorder: Recorder
    budgets: Resource[PodDisruptionBudget]
    program: RouterProgram
    resync: float
    clock: Callable[[], float]
    log: FilteringBoundLogger


@dataclass(frozen=True, slots=True, kw_only=True)
class TermSources:
    """Who tells of changes, by kind."""

    egresses: TermSource[Egress]
    deployments: TermSource[Deployment]
    services: TermSource[Service]
    budgets: TermSource[PodDisruptionBudget]
    accounts: TermSource[ServiceAccount]
    bindings: TermSource[ClusterRoleBinding]

    def end_term(self) -> None:
        self.egresses.end_term()
        self.deployments.end_term()
        self.services.end_term()
        self.budgets.end_term()
        self.accounts.end_term()
        self.bindings.end_term()


class Leadership:
    """`sources` stand on the caches of the workplace, which must be synced before `lead`."""

    def __init__(self, place: Deps, *, sources: TermSources, metrics: ReconcileMetrics) -> None:
        self._place = place
        self._sources = sources
        self._metrics = metrics

    async def lead(self) -> None:
        """Work until cancelled. May be called again after that."""
        with ExitStack() as term:
            term.callback(self._sources.end_term)
            egresses, accounts, bindings = (
                self._queue(term, name) for name in ("egress", "serviceaccount", "rolebinding")
            )
            async with asyncio.TaskGroup() as group:
                controller = self._assemble(group, egresses, accounts, bindings)
                group.create_task(self._sweep(controller, egresses), name="sweep")

    def _assemble(
        self, group: asyncio.TaskGroup, egresses: WorkQueue, accounts: WorkQueue, bindings: WorkQueue
    ) -> EgressReconciler:
        """Have everybody work in `group`: who does what, and what makes them do it."""
        place, sources = self._place, self._sources
        account_controller = ServiceAccountReconciler(client=place.client, view=place.view, log=place.log)
        binding_controller = RoleBindingReconciler(client=place.client, view=place.view, log=place.log)
        egress_controller = EgressReconciler(
            client=place.client,
            view=place.view,
            accounts=account_controller,
            recorder=place.recorder,
            program=place.program,
            budgets=place.budgets,
            log=place.log,
        )
        by_egress = self._controller(egresses, egress_controller.reconcile, EGRESS_WORKERS)
        by_egress.watch(sources.egresses, _key)
        by_egress.watch(sources.deployments, _key)
        by_egress.watch(sources.services, _key)
        by_egress.watch(sources.budgets, _key)
        by_namespace = self._controller(accounts, account_controller.reconcile)
        by_namespace.watch(sources.egresses, _namespace_of_come_or_gone)
        by_namespace.watch(sources.accounts, _namespace_of_come_or_gone)
        by_binding = self._controller(bindings, binding_controller.reconcile, 1)
        by_binding.watch(sources.egresses, _binding_of_come_or_gone)
        by_binding.watch(sources.bindings, _key)
        for controller in (by_egress, by_namespace, by_binding):
            group.create_task(controller.run(), name=controller.name)
        # The cluster may have lost its last Egress while nobody led.
        bindings.add(ROUTER_BINDING)
        return egress_controller

    def _queue(self, term: ExitStack, name: str) -> WorkQueue:
        queue = WorkQueue(name, metrics=self._metrics, clock=self._place.clock)
        term.callback(queue.close)
        return queue

    def _controller(self, queue: WorkQueue, reconcile: Reconcile, workers: int = WORKERS) -> Controller:
        log = self._place.log
        return Controller(queue.name, reconcile, queue=queue, metrics=self._metrics, log=log, workers=workers)

    async def _sweep(self, controller: EgressReconciler, egresses: WorkQueue) -> None:
        """What no event tells of: objects of other people's making, and what a fingerprint does not show."""
        while True:
            await asyncio.sleep(self._place.resync)
            keys = [object_key(egress.metadata) for egress in self._place.view.egresses.items()]
            self._place.log.info("comparing everything", egresses=len(keys))
            controller.objects.forget()
            for key in keys:
                egresses.add(key)


async def lead_all(leads: Sequence[Lead]) -> None:
    """Do all of that at once: one leader does everything. One that fails ends the others."""
    async with asyncio.TaskGroup() as group:
        for number, lead in enumerate(leads):
            group.create_task(lead(), name=f"lead-{number}")


def _key(old: HasMetadata | None, new: HasMetadata | None) -> Iterable[str]:
    """Of an Egress, and of what has its name; and of the binding."""
    yield from {object_key(item.metadata) for item in (old, new) if item is not None}


def _namespace_of_come_or_gone(old: HasMetadata | None, new: HasMetadata | None) -> Iterable[str]:
    present = new or old
    if (old is None) != (new is None) and present is not None:
        yield present.metadata.namespace


def _binding_of_come_or_gone(old: Egress | None, new: Egress | None) -> Iterable[str]:
    if (old is None) != (new is None):
        yield ROUTER_BINDING
