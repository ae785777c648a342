"""Writes into the EgressClusterInfo which networks of the cluster were found. Its own extraCidr is read by
`cluster_networks_reconciler`.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from structlog.typing import FilteringBoundLogger

from coil.crd.egress_cluster_info import CLUSTER_INFO, EGRESS_CLUSTER_INFOS, EgressClusterInfo
from coil.egress.cluster_info import plan_status
from coil.egress.cluster_networks import find_unusable, read_kubeadm_services
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError
from coil.manager.term import Term
from coil.reconcile.cache import Cache, describe_unsynced
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil_egress_controller.egress.cluster_networks_reconciler import LOOK_AGAIN, ClusterCaches

_BATCH_WINDOW = 1.0


class ClusterInfoReconciler:
    """The only key is CLUSTER_INFO."""

    def __init__(
        self, *, client: ApiClient, caches: ClusterCaches, infos: Cache[EgressClusterInfo], log: FilteringBoundLogger
    ) -> None:
        self._client = client
        self._caches = caches
        self._infos = infos
        self._log = log

    def setup(self, term: Term, *, resync: float) -> None:
        caches = self._caches
        controller = term.controller("egressclusterinfo", self.reconcile)
        controller.watch(self._infos, self._of_change, optional=True)
        controller.watch(caches.pools, self._of_change, batch_window=_BATCH_WINDOW)
        controller.watch(caches.service_cidrs, self._of_change, batch_window=_BATCH_WINDOW, optional=True)
        controller.watch(caches.calico_pools, self._of_change, batch_window=_BATCH_WINDOW, optional=True)
        controller.watch(caches.kubeadm, self._of_change)
        controller.resync(lambda: [CLUSTER_INFO], every=resync, at_start=True)

    async def reconcile(self, key: str) -> Result:
        """Have the status say what the caches do. Idempotent; raises ApiError."""
        info = self._infos.get(key)
        if info is None or info.metadata.deleting:
            return DONE
        caches = self._caches
        optional: tuple[Cache[Any], ...] = (caches.service_cidrs, caches.calico_pools)
        if any(describe_unsynced(cache, optional=True) for cache in optional):
            return RequeueAfter(LOOK_AGAIN)
        status = plan_status(
            info,
            pools=caches.pools.items(),
            calico_pools=caches.calico_pools.items(),
            service_cidrs=caches.service_cidrs.items(),
            configured_services=[text for each in caches.kubeadm.items() for text in read_kubeadm_services(each.data)],
        )
        if status == info.status:
            return DONE
        body: Any = msgspec.structs.replace(info, status=status)
        try:
            await self._client.replace(EGRESS_CLUSTER_INFOS, body, name=key, subresource="status")
        except NotFoundError:
            return DONE
        if unusable := [text for text in info.spec.extra_cidr if find_unusable(text)]:
            self._log.warning("not networks of the cluster", egressclusterinfo=key, ignored=unusable)
        return DONE

    @staticmethod
    def _of_change(_old: object, _new: object) -> Iterable[str]:
        return [CLUSTER_INFO]
