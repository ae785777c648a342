"""Publishes the cluster's networks that are not private, for each node to keep them out of its pods' tunnels.

Everything is written under one key: a ConfigMap, which the chart creates. It may lag behind for a moment: until a new
Node is known, what a client sends to its address goes through the tunnel, as to any other host.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.builtin import CONFIG_MAPS, SERVICE_CIDRS, SERVICES, ConfigMap, Node, Service, ServiceCidr
from coil.crd.resource import NamespacedName
from coil.egress.cluster_networks import collect_cluster_networks, render_cluster_networks
from coil.kernel.family import IPNetwork
from coil.kube.api_client import ApiClient
from coil.kube.client import KubeClient
from coil.kube.collection import Freshness
from coil.kube.errors import NotFoundError
from coil.manager.manager import Manager
from coil.manager.term import Term
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, Result

_BATCH_WINDOW: Final = 1.0
"""Seconds for which changes of Nodes are gathered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCaches:
    """Where the cluster's networks are read; `apiserver_service` has one object."""

    nodes: Cache[Node]
    pools: Cache[AddressPool]
    service_cidrs: Cache[ServiceCidr]
    apiserver_service: Cache[Service]

    @classmethod
    def start(cls, manager: Manager, client: KubeClient, *, nodes: Cache[Node]) -> "ClusterCaches":
        """Follow everything from now on."""
        services = client.collection(
            SERVICES, namespace="default", fields="metadata.name=kubernetes", freshness=Freshness.CACHED
        )
        return cls(
            nodes=nodes,
            pools=manager.cache(client.collection(ADDRESS_POOLS, freshness=Freshness.CACHED), optional=True),
            service_cidrs=manager.cache(client.collection(SERVICE_CIDRS, freshness=Freshness.CACHED), optional=True),
            apiserver_service=manager.cache(services, name="apiserver-service", optional=True),
        )


def follow_config_map(manager: Manager, client: KubeClient, at: NamespacedName) -> Cache[ConfigMap]:
    """A cache of this one alone."""
    config_maps = client.collection(CONFIG_MAPS, namespace=at.namespace, fields=f"metadata.name={at.name}")
    return manager.cache(config_maps, optional=True)


class ClusterNetworksReconciler:
    """The only key is the ConfigMap's. `extra` are networks that no object names."""

    def __init__(
        self,
        *,
        client: ApiClient,
        caches: ClusterCaches,
        config_maps: Cache[ConfigMap],
        into: NamespacedName,
        extra: Collection[IPNetwork],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._caches = caches
        self._config_maps = config_maps
        self._into = into
        self._extra = tuple(extra)
        self._log = log

    def setup(self, term: Term, *, resync: float) -> None:
        caches = self._caches
        controller = term.controller("clusternetworks", self.reconcile)
        controller.watch(caches.nodes, self.of_node, batch_window=_BATCH_WINDOW)
        controller.watch(caches.pools, self.of_change)
        controller.watch(caches.service_cidrs, self.of_change)
        controller.watch(caches.apiserver_service, self.of_change)
        controller.watch(self._config_maps, self.of_change)
        controller.resync(lambda: [str(self._into)], every=resync, at_start=True)

    def of_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """The key, where the Node's networks have changed."""
        before, after = ((node.addresses(), node.spec.pod_cidrs) if node is not None else None for node in (old, new))
        return [str(self._into)] if before != after else []

    def of_change(self, _old: object, _new: object) -> Iterable[str]:
        """The key."""
        return [str(self._into)]

    async def reconcile(self, key: str) -> Result:
        """Have the ConfigMap say what the caches do. Idempotent; raises ApiError."""
        caches = self._caches
        networks = collect_cluster_networks(
            nodes=caches.nodes.items(),
            pools=caches.pools.items(),
            service_cidrs=caches.service_cidrs.items(),
            services=caches.apiserver_service.items(),
            extra=self._extra,
        )
        data = render_cluster_networks(networks)
        config_map = self._config_maps.get(key)
        if config_map is not None and data.items() <= config_map.data.items():
            return DONE
        try:
            await self._client.patch(CONFIG_MAPS, self._into.name, {"data": data}, namespace=self._into.namespace)
        except NotFoundError:
            self._log.error("there is no such ConfigMap, so nodes are not told the cluster's networks", name=key)
            return DONE
        self._log.info("cluster's networks published", name=key, networks=len(networks))
        return DONE
