"""Router pods: the caches of the feature, followed by every replica, and the controllers of a leader's term."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import (
    CLUSTER_ROLE_BINDINGS,
    DEPLOYMENTS,
    POD_DISRUPTION_BUDGETS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    SERVICES,
    ClusterRoleBinding,
    ConfigMap,
    Deployment,
    Namespace,
    PodDisruptionBudget,
    RoleBinding,
    Service,
    ServiceAccount,
)
from coil.crd.egress import EGRESSES, Egress
from coil.crd.egress_client_slice import EGRESS_CLIENT_SLICES, EgressClientSlice
from coil.egress.router_pod import EGRESS_SELECTOR, RouterProgram
from coil.kube.api_client import ApiClient
from coil.kube.client import KubeClient
from coil.kube.collection import Freshness
from coil.manager.manager import Manager
from coil.manager.term import Term
from coil.reconcile.cache import Cache
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.own_write import OwnWriter, OwnWrites
from coil_egress_controller.egress.client_slice_reconciler import (
    CLIENT_PHASES,
    CLIENT_PODS,
    POD_INDEXERS,
    SLICE_INDEXERS,
    ClientPod,
    ClientSliceReconciler,
    names_egress,
)
from coil_egress_controller.egress.egress_reconciler import EgressReconciler, RouterCaches
from coil_egress_controller.egress.router_account import (
    EGRESS_INDEXERS,
    ROUTER_BINDING,
    ClusterRoleBindingReconciler,
    RouterAccountReconciler,
)

_BINDING: Final = f"metadata.name={ROUTER_BINDING}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressCaches:
    """Egresses of all namespaces, pods that name one, and what router pods are told of these; of the other kinds only
    what carries the labels of an Egress's objects, and of ClusterRoleBindings only the one of router pods.
    """

    egresses: Cache[Egress]
    deployments: Cache[Deployment]
    services: Cache[Service]
    budgets: Cache[PodDisruptionBudget]
    accounts: Cache[ServiceAccount]
    bindings: Cache[RoleBinding]
    cluster_bindings: Cache[ClusterRoleBinding]
    clients: Cache[ClientPod]
    namespaces: Cache[Namespace]
    client_slices: Cache[EgressClientSlice]
    cluster_networks: Cache[ConfigMap] | None = None
    """Has the ConfigMap that tells the cluster's networks, if any does."""

    @classmethod
    def start(
        cls,
        manager: Manager,
        client: KubeClient,
        *,
        namespaces: Cache[Namespace],
        cluster_networks: Cache[ConfigMap] | None,
    ) -> "EgressCaches":
        """Follow everything else from now on."""
        labels = EGRESS_SELECTOR
        return cls(
            egresses=manager.cache(client.collection(EGRESSES), indexers=EGRESS_INDEXERS),
            deployments=manager.cache(client.collection(DEPLOYMENTS, labels=labels)),
            services=manager.cache(client.collection(SERVICES, labels=labels)),
            budgets=manager.cache(client.collection(POD_DISRUPTION_BUDGETS, labels=labels)),
            accounts=manager.cache(client.collection(SERVICE_ACCOUNTS, labels=labels)),
            bindings=manager.cache(client.collection(ROLE_BINDINGS, labels=labels)),
            cluster_bindings=manager.cache(client.collection(CLUSTER_ROLE_BINDINGS, fields=_BINDING)),
            # There are many, of which a few are clients; no decision relies on the absence of one.
            clients=manager.cache(
                client.collection(CLIENT_PODS, fields=CLIENT_PHASES, freshness=Freshness.CACHED, keep=names_egress),
                name="egress-clients",
                indexers=POD_INDEXERS,
            ),
            namespaces=namespaces,
            cluster_networks=cluster_networks,
            client_slices=manager.cache(
                client.collection(EGRESS_CLIENT_SLICES), indexers=SLICE_INDEXERS, optional=True
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressControllers:
    """`setup` declares the controllers of a term. `program` is what runs in router pods, `resync` is in seconds,
    `clock` gives monotonic seconds. `privileged_templates`: Egresses may give router pods any privilege.
    """

    caches: EgressCaches
    client: ApiClient
    recorder: Recorder
    program: RouterProgram
    resync: float
    log: FilteringBoundLogger
    clock: Callable[[], float] = time.monotonic
    privileged_templates: bool = False

    def setup(self, term: Term) -> None:
        caches, client, log = self.caches, self.client, self.log
        slices_written: OwnWrites[EgressClientSlice] = OwnWrites()
        term.subscribe(caches.client_slices, slices_written.observe)
        accounts = RouterAccountReconciler(
            client=client,
            egresses=caches.egresses,
            accounts=caches.accounts,
            bindings=caches.bindings,
            log=log,
        )
        routers = EgressReconciler(
            client=client,
            egresses=caches.egresses,
            routers=RouterCaches(
                deployments=caches.deployments,
                services=caches.services,
                budgets=caches.budgets,
                cluster_networks=caches.cluster_networks,
            ),
            accounts=accounts,
            recorder=self.recorder,
            program=self.program,
            privileged_templates=self.privileged_templates,
            log=log,
        )
        routers.setup(term, resync=self.resync)
        accounts.setup(term)
        ClusterRoleBindingReconciler(
            client=client, egresses=caches.egresses, bindings=caches.cluster_bindings, log=log
        ).setup(term)
        ClientSliceReconciler(
            egresses=caches.egresses,
            pods=caches.clients,
            namespaces=caches.namespaces,
            slices=caches.client_slices,
            writer=OwnWriter(client, EGRESS_CLIENT_SLICES, caches.client_slices, slices_written),
            recorder=self.recorder,
            clock=self.clock,
            log=log,
        ).setup(term)
