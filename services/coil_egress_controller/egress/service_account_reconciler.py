"""The ServiceAccount of router pods: one in each namespace that has Egresses, and in no other.

It is made when the first Egress comes and deleted when the last one has gone. One that somebody else has made under
this name serves as well, and stays: ours is known by its labels. It is never written to after its creation, so image
pull secrets and annotations may be added to it.
"""

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import SERVICE_ACCOUNTS
from coil.crd.egress import EGRESSES
from coil.crd.names import APP_NAME, COMPONENT_EGRESS, LABEL_APP_COMPONENT, LABEL_APP_NAME
from coil.egress.router_pod import ROUTER_ACCOUNT
from coil.kube.api_client import ApiClient
from coil.kube.errors import AlreadyExistsError, NamespaceTerminatingError, NotFoundError
from coil.reconcile.controller import DONE, Result
from coil_egress_controller.cluster_view import BY_NAMESPACE, ClusterView

_LABELS = {LABEL_APP_NAME: APP_NAME, LABEL_APP_COMPONENT: COMPONENT_EGRESS}


class ServiceAccountReconciler:
    """Wants to be told of the namespaces of Egresses that come and go, and of accounts of ours that go."""

    def __init__(self, *, client: ApiClient, view: ClusterView, log: FilteringBoundLogger) -> None:
        self._client = client
        self._view = view
        self._log = log

    async def reconcile(self, namespace: str) -> Result:
        """Make or delete the account of that namespace."""
        if self._view.egresses.by_index(BY_NAMESPACE, namespace):
            await self.ensure(namespace)
        else:
            await self._remove(namespace)
        return DONE

    async def ensure(self, namespace: str) -> None:
        """Have an account there. Idempotent; raises ApiError."""
        if self._view.accounts.get(f"{namespace}/{ROUTER_ACCOUNT}") is not None:
            return
        document = {"metadata": {"name": ROUTER_ACCOUNT, "namespace": namespace, "labels": _LABELS}}
        try:
            await self._client.create(SERVICE_ACCOUNTS, document, namespace=namespace)
        except AlreadyExistsError:
            return
        except (NamespaceTerminatingError, NotFoundError):
            self._log.debug("no account in a namespace that goes", namespace=namespace)
            return
        self._log.info("created", kind=SERVICE_ACCOUNTS.kind, namespace=namespace, name=ROUTER_ACCOUNT)

    async def _remove(self, namespace: str) -> None:
        account = self._view.accounts.get(f"{namespace}/{ROUTER_ACCOUNT}")
        # The cache may not have heard of an Egress that has just been made.
        if account is None or await self._client.list(EGRESSES, namespace=namespace):
            return
        try:
            await self._client.delete(SERVICE_ACCOUNTS, ROUTER_ACCOUNT, namespace=namespace, uid=account.metadata.uid)
        except NotFoundError:
            return
        self._log.info("deleted", kind=SERVICE_ACCOUNTS.kind, namespace=namespace, name=ROUTER_ACCOUNT)
