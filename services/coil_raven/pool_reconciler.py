"""Has ports wait for pods: for each network and host with pods on it, as many as are wanted."""

from collections.abc import Iterable
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import Node, Pod
from coil.manager.term import Term
from coil.openstack.error import DeniedError, ExhaustedError, InvalidError, OpenStackError, QuotaError
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil_raven.caches import BY_NAMESPACE, wants_port
from coil_raven.namespace_network import NamespaceNetwork
from coil_raven.namespace_reconciler import Networks
from coil_raven.pod_reconciler import host_of
from coil_raven.port_pool import PoolKey, PortPools

SLOW_RETRY = 60.0
"""Seconds to the next try where only people can change something. Pods do not wait for it."""
_FOR_PEOPLE = (QuotaError, ExhaustedError, DeniedError, InvalidError)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReconciler:
    """The keys are `PoolKey`s. `pods` has `POD_INDEXERS`."""

    pools: PortPools
    networks: Networks
    pods: Cache[Pod]
    nodes: Cache[Node]
    log: FilteringBoundLogger

    def setup(self, term: Term) -> None:
        controller = term.controller("port-pool", self.reconcile, expected_errors=(OpenStackError,))
        controller.needs(self.pods)
        controller.needs(self.nodes)
        controller.watch_channel(self.pools.changed, lambda key: (str(key),))
        controller.watch_channel(self.networks.ready, self._pools_of)

    async def reconcile(self, text: str) -> Result:
        """Bring the number of ports that wait there in line with the pods that are there."""
        key = PoolKey.parse(text)
        network = self.networks.by_id(key.network)
        if network is None:
            # It is queued when the network is ready. What is on a network that is being deleted goes with it.
            return DONE
        try:
            pause = await self.pools.maintain(key, network, in_use=self._in_use(network, key.host))
        except _FOR_PEOPLE as error:
            self.log.warning("no ports wait for pods", namespace=network.namespace, host=key.host, error=str(error))
            return RequeueAfter(SLOW_RETRY)
        return DONE if pause is None else RequeueAfter(pause)

    def _in_use(self, network: NamespaceNetwork, host: str) -> bool:
        return any(
            wants_port(pod) and host_of(self.nodes, pod.spec.node_name) == host
            for pod in self.pods.by_index(BY_NAMESPACE, network.namespace)
        )

    def _pools_of(self, network: NamespaceNetwork) -> Iterable[str]:
        return {str(key) for key in self.pools.pool_keys() if key.network == network.network.id}
