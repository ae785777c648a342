"""The ClusterRoleBinding `coil-egress`: lets the router pods' accounts watch pods and Egresses.

The chart makes it, without subjects; here its subjects follow the namespaces that have Egresses. Other subjects are not
ours and stay. Each change carries the version that it was decided on.
"""

from collections.abc import Collection

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import CLUSTER_ROLE_BINDINGS, Subject
from coil.egress.router_pod import ROUTER_ACCOUNT
from coil.kube.api_client import ApiClient
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil_egress_controller.cluster_view import ClusterView

ROUTER_BINDING = "coil-egress"

MISSING_SECONDS = 30.0
"""Until a binding that is missing is looked for again."""

_ACCOUNT = "ServiceAccount"


class RoleBindingReconciler:
    """Wants to be told of the binding, and of namespaces that get their first Egress or lose their last one."""

    def __init__(self, *, client: ApiClient, view: ClusterView, log: FilteringBoundLogger) -> None:
        self._client = client
        self._view = view
        self._log = log

    async def reconcile(self, name: str) -> Result:
        """Bring the subjects of the binding of that name in line."""
        binding = self._view.bindings.get(name)
        if binding is None:
            if not self._view.namespaces():
                return DONE
            self._log.error("the ClusterRoleBinding of router pods is missing: apply the chart's", name=name)
            return RequeueAfter(MISSING_SECONDS)
        before = binding.subjects or ()
        subjects = plan_subjects(before, self._view.namespaces())
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
    """The subjects that there are to be: those that stay in their order, then new ones in theirs."""
    kept = tuple(subject for subject in present if not _is_ours(subject) or subject.namespace in namespaces)
    known = {subject.namespace for subject in kept if _is_ours(subject)}
    new = sorted(set(namespaces) - known)
    return kept + tuple(Subject(kind=_ACCOUNT, name=ROUTER_ACCOUNT, namespace=namespace) for namespace in new)


def _is_ours(subject: Subject) -> bool:
    return (subject.kind, subject.name) == (_ACCOUNT, ROUTER_ACCOUNT)
