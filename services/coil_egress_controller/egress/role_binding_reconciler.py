"""The ClusterRoleBinding `coil-egress`, which lets the ServiceAccounts of router pods watch pods and Egresses.

The chart creates it without subjects; here its subjects follow the namespaces that have Egresses. Other subjects are
left alone. Each change is guarded by the resource version that it was decided on.
"""

from collections.abc import Collection, Iterable

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import CLUSTER_ROLE_BINDINGS, ClusterRoleBinding, Subject
from coil.crd.egress import Egress
from coil.egress.router_pod import ROUTER_ACCOUNT
from coil.kube.api_client import ApiClient
from coil.manager.term import Term
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, RequeueAfter, Result

ROUTER_BINDING = "coil-egress"

MISSING_SECONDS = 30.0
"""Until the next look for a missing binding."""

_ACCOUNT = "ServiceAccount"


class RoleBindingReconciler:
    """The key is the binding's name."""

    def __init__(
        self,
        *,
        client: ApiClient,
        egresses: Cache[Egress],
        bindings: Cache[ClusterRoleBinding],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._egresses = egresses
        self._bindings = bindings
        self._log = log

    def setup(self, term: Term) -> None:
        controller = term.controller("rolebinding", self.reconcile)
        controller.watch(self._egresses, _binding_of_change)
        controller.watch(self._bindings, lambda _old, _new: [ROUTER_BINDING])
        # The cluster may have lost its last Egress while no replica was the leader.
        controller.enqueue(ROUTER_BINDING)

    async def reconcile(self, name: str) -> Result:
        """Bring the subjects of the binding of that name in line."""
        binding = self._bindings.get(name)
        namespaces = {egress.metadata.namespace for egress in self._egresses.items()}
        if binding is None:
            if not namespaces:
                return DONE
            self._log.error("the ClusterRoleBinding of router pods is missing: apply the chart's", name=name)
            return RequeueAfter(MISSING_SECONDS)
        before = binding.subjects or ()
        subjects = plan_subjects(before, namespaces)
        if subjects != before:
            await self._client.patch(
                CLUSTER_ROLE_BINDINGS,
                name,
                {
                    "metadata": {"resourceVersion": binding.metadata.resource_version},
                    "subjects": list(subjects),
                },
            )
            self._log.info("subjects changed", name=name, before=len(before), after=len(subjects))
        return DONE


def plan_subjects(present: tuple[Subject, ...], namespaces: Collection[str]) -> tuple[Subject, ...]:
    """The wanted subjects: the present ones that stay, in their order, then new ones, by namespace."""
    kept = tuple(subject for subject in present if not _is_ours(subject) or subject.namespace in namespaces)
    known = {subject.namespace for subject in kept if _is_ours(subject)}
    new = sorted(set(namespaces) - known)
    return kept + tuple(Subject(kind=_ACCOUNT, name=ROUTER_ACCOUNT, namespace=namespace) for namespace in new)


def _is_ours(subject: Subject) -> bool:
    return (subject.kind, subject.name) == (_ACCOUNT, ROUTER_ACCOUNT)


def _binding_of_change(old: Egress | None, new: Egress | None) -> Iterable[str]:
    """An Egress was created or deleted."""
    return [ROUTER_BINDING] if (old is None) != (new is None) else []
