"""Router pods: the caches of the feature, followed by every replica, and the controllers of a leader's term."""

from dataclasses import dataclass
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import (
    CLUSTER_ROLE_BINDINGS,
    DEPLOYMENTS,
    POD_DISRUPTION_BUDGETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    ClusterRoleBinding,
    Deployment,
    PodDisruptionBudget,
    Service,
    ServiceAccount,
)
from coil.crd.egress import EGRESSES, Egress
from coil.egress.router_pod import EGRESS_SELECTOR, RouterProgram
from coil.kube.api_client import ApiClient
from coil.kube.client import KubeClient
from coil.manager.manager import Manager
from coil.manager.term import Term
from coil.reconcile.cache import Cache
from coil.reconcile.event_recorder import Recorder
from coil_egress_controller.egress.egress_reconciler import EgressReconciler, RouterCaches
from coil_egress_controller.egress.router_account import (
    EGRESS_INDEXERS,
    ROUTER_BINDING,
    RoleBindingReconciler,
    ServiceAccountReconciler,
)

_BINDING: Final = f"metadata.name={ROUTER_BINDING}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressCaches:
    """Egresses of all namespaces; of the other kinds only what carries the labels of an Egress's objects, and of
    ClusterRoleBindings only the one of router pods.
    """

    egresses: Cache[Egress]
    deployments: Cache[Deployment]
    services: Cache[Service]
    budgets: Cache[PodDisruptionBudget]
    accounts: Cache[ServiceAccount]
    bindings: Cache[ClusterRoleBinding]

    @classmethod
    def start(cls, manager: Manager, client: KubeClient) -> "EgressCaches":
        """Follow everything from now on."""
        labels = EGRESS_SELECTOR
        return cls(
            egresses=manager.cache(client.collection(EGRESSES), indexers=EGRESS_INDEXERS),
            deployments=manager.cache(client.collection(DEPLOYMENTS, labels=labels)),
            services=manager.cache(client.collection(SERVICES, labels=labels)),
            budgets=manager.cache(client.collection(POD_DISRUPTION_BUDGETS, labels=labels)),
            accounts=manager.cache(client.collection(SERVICE_ACCOUNTS, labels=labels)),
            bindings=manager.cache(client.collection(CLUSTER_ROLE_BINDINGS, fields=_BINDING)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressControllers:
    """`setup` declares the controllers of a term. `program` is what runs in router pods, `resync` is in seconds.
    `privileged_templates`: Egresses may give router pods any privilege.
    """

    caches: EgressCaches
    client: ApiClient
    recorder: Recorder
    program: RouterProgram
    resync: float
    log: FilteringBoundLogger
    privileged_templates: bool = False

    def setup(self, term: Term) -> None:
        caches, client, log = self.caches, self.client, self.log
        accounts = ServiceAccountReconciler(client=client, egresses=caches.egresses, accounts=caches.accounts, log=log)
        routers = EgressReconciler(
            client=client,
            egresses=caches.egresses,
            routers=RouterCaches(deployments=caches.deployments, services=caches.services, budgets=caches.budgets),
            accounts=accounts,
            recorder=self.recorder,
            program=self.program,
            privileged_templates=self.privileged_templates,
            log=log,
        )
        routers.setup(term, resync=self.resync)
        accounts.setup(term)
        RoleBindingReconciler(client=client, egresses=caches.egresses, bindings=caches.bindings, log=log).setup(term)
