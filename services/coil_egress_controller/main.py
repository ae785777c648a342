"""coil-egress-controller: has router pods run for each Egress, behind a Service, and moves floating egress addresses.

Run by `python -m coil_egress_controller`, any number of replicas. Wires the parts together and nothing else: all
replicas keep their caches up to date, answer admission reviews and are ready; one of them, elected, works.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from coil.admission.assembly import WebhookService, start_admission
from coil.crd.builtin import CLUSTER_ROLE_BINDINGS, DEPLOYMENTS, SERVICE_ACCOUNTS, SERVICES, disruption_budgets
from coil.crd.egress import EGRESSES
from coil.crd.resource import HasMetadata, Resource
from coil.egress.router_container import RouterProgram
from coil.egress.router_label import EGRESS_SELECTOR
from coil.kube.client import KubeClient
from coil.manager.election import Election
from coil.reconcile.cache import wait_synced
from coil.reconcile.event_metric import EventMetrics
from coil.reconcile.event_recorder import EventRecorder
from coil.reconcile.informer import Informer
from coil.reconcile.informer_metric import InformerMetrics
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.term import TermSource
from coil.runtime.flag import parse_settings
from coil.runtime.process import Process, run
from coil_egress_controller.cluster_view import EGRESS_INDEXERS, ClusterView
from coil_egress_controller.egress.admission import EgressAdmission
from coil_egress_controller.egress.own_image import find_own_image
from coil_egress_controller.egress.role_binding_reconciler import ROUTER_BINDING
from coil_egress_controller.eip.admission_reader import AdmissionReader
from coil_egress_controller.eip.assembly import start_eip
from coil_egress_controller.eip.gateway_admission import GatewayAdmission
from coil_egress_controller.eip.policy_admission import PolicyAdmission
from coil_egress_controller.eip.policy_version import choose_version, watch_version
from coil_egress_controller.leadership import Deps, Lead, Leadership, TermSources, lead_all
from coil_egress_controller.settings import Settings

T = TypeVar("T", bound=HasMetadata)

NAME = "coil-egress-controller"


def main() -> int:
    settings = parse_settings(
        Settings, sys.argv[1:], os.environ, program=NAME, about="Has router pods run for each Egress."
    )
    return run(partial(assemble, settings), name=NAME, settings=settings)


async def assemble(settings: Settings, process: Process) -> None:
    """Start everything; returns once the caches are synced and this replica contends for the lease."""
    log = process.log
    kube = await process.stack.enter_async_context(KubeClient.connect(settings.kubeconfig))
    # Before anything is asked for: while it is not answered, no Egress can be changed.
    place = WebhookService(NAME, settings.lease_namespace)
    sight = AdmissionReader(kube, log=log)
    judges = {**EgressAdmission().judges, **GatewayAdmission(sight).judges, **PolicyAdmission(sight).judges}
    await start_admission(process, settings, judges, client=kube, at=place)
    version = await choose_version(kube, log=log, random=random.random)
    budget_kind = disruption_budgets(version)
    process.spawn("policy version", watch_version(kube, version))
    image = settings.egress_image or await find_own_image(
        kube, namespace=settings.pod_namespace, name=settings.pod_name, container=NAME
    )
    log.info("router pods", image=image, port=settings.egress_port, budgets=budget_kind.api_version)

    informer_metrics = InformerMetrics(process.registry)

    def follow(
        resource: Resource[T],
        *,
        labels: str = "",
        fields: str = "",
        indexers: Mapping[str, Callable[[T], Iterable[str]]] | None = None,
    ) -> Informer[T]:
        collection = kube.collection(resource, labels=labels, fields=fields)
        return Informer(collection, log=log, metrics=informer_metrics, indexers=indexers)

    egresses = follow(EGRESSES, indexers=EGRESS_INDEXERS)
    deployments = follow(DEPLOYMENTS, labels=EGRESS_SELECTOR)
    services = follow(SERVICES, labels=EGRESS_SELECTOR)
    budgets = follow(budget_kind, labels=EGRESS_SELECTOR)
    accounts = follow(SERVICE_ACCOUNTS, labels=EGRESS_SELECTOR)
    bindings = follow(CLUSTER_ROLE_BINDINGS, fields=f"metadata.name={ROUTER_BINDING}")
    view = ClusterView(
        egresses=egresses,
        deployments=deployments,
        services=services,
        budgets=budgets,
        accounts=accounts,
        bindings=bindings,
    )
    sources = TermSources(
        egresses=TermSource(egresses),
        deployments=TermSource(deployments),
        services=TermSource(services),
        budgets=TermSource(budgets),
        accounts=TermSource(accounts),
        bindings=TermSource(bindings),
    )
    recorder = EventRecorder(kube, component=NAME, log=log, metrics=EventMetrics(process.registry))
    process.spawn("events", recorder.run())
    informers: dict[str, Informer[Any]] = {
        "egresses": egresses,
        "deployments": deployments,
        "services": services,
        "poddisruptionbudgets": budgets,
        "serviceaccounts": accounts,
        "clusterrolebindings": bindings,
    }
    for name, informer in informers.items():
        process.add_readiness(name, partial(_listed, informer))
        process.spawn(name, informer.run())
    metrics = ReconcileMetrics(process.registry)
    leads: list[Lead] = []
    if settings.enable_eip:
        eip = start_eip(
            process,
            settings,
            client=kube,
            informer_metrics=informer_metrics,
            metrics=metrics,
            recorder=recorder,
            show=sight.show,
        )
        leads.append(eip.lead)
    await wait_synced(informers.values(), log=log)

    workplace = Deps(
        client=kube,
        view=view,
        recorder=recorder,
        budgets=budget_kind,
        program=RouterProgram(image=image, port=settings.egress_port),
        resync=settings.resync_interval,
        clock=time.monotonic,
        log=log,
    )
    leads.append(Leadership(workplace, sources=sources, metrics=metrics).lead)
    election = Election(process, settings, client=kube, metrics=metrics)
    process.spawn("election", election.run(partial(lead_all, leads)))


def _listed(informer: Informer[Any]) -> str | None:
    return None if informer.synced else f"not listed yet: {informer.last_error or 'no answer'}"
