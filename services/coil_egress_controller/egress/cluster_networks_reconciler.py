"""Publishes the cluster's networks, for each node to keep them out of its pods' tunnels and of policies.

Everything is written under one key: a ConfigMap, which the chart creates. It may lag behind for a moment: until a new
Node is known, what a client sends to its address goes through the tunnel, as to any other host.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.builtin import CONFIG_MAPS, SERVICE_CIDRS, SERVICES, ConfigMap, Node, Service, ServiceCidr
from coil.crd.cidr import OwnedNetwork
from coil.crd.egress_cluster_info import EgressClusterInfo
from coil.crd.foreign_network import CALICO_POOLS, CILIUM_NODES, CalicoPool, CiliumNode
from coil.crd.resource import NamespacedName
from coil.egress.cluster_networks import (
    CILIUM,
    EXTRA,
    KUBE_PROXY,
    KUBEADM,
    collect_node_networks,
    collect_pod_and_service_networks,
    find_added_networks,
    find_foreign_networks,
    find_unusable,
    render_cluster_networks,
)
from coil.kube.api_client import ApiClient
from coil.kube.client import KubeClient
from coil.kube.collection import Freshness
from coil.kube.errors import NotFoundError
from coil.manager.manager import Manager
from coil.manager.term import Term
from coil.reconcile.cache import Cache, describe_unsynced
from coil.reconcile.controller import DONE, RequeueAfter, Result

_BATCH_WINDOW: Final = 1.0
"""Seconds for which changes of Nodes are gathered."""
LOOK_AGAIN: Final = 1.0
"""Seconds until it is known whether a kind is served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCaches:
    """Where the cluster's networks are read; `apiserver_service` has one object. Not every cluster serves ServiceCIDRs,
    nor the kinds of other programs.
    """

    nodes: Cache[Node]
    pools: Cache[AddressPool]
    service_cidrs: Cache[ServiceCidr]
    apiserver_service: Cache[Service]
    calico_pools: Cache[CalicoPool]
    cilium_nodes: Cache[CiliumNode]
    kubeadm: Cache[ConfigMap]
    kube_proxy: Cache[ConfigMap]
    cilium: Cache[ConfigMap]

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
            calico_pools=manager.cache(client.collection(CALICO_POOLS, freshness=Freshness.CACHED), optional=True),
            cilium_nodes=manager.cache(client.collection(CILIUM_NODES, freshness=Freshness.CACHED), optional=True),
            kubeadm=follow_config_map(manager, client, KUBEADM, name="kubeadm-config"),
            kube_proxy=follow_config_map(manager, client, KUBE_PROXY, name="kube-proxy-config"),
            cilium=follow_config_map(manager, client, CILIUM, name="cilium-config"),
        )


def follow_config_map(manager: Manager, client: KubeClient, at: NamespacedName, *, name: str = "") -> Cache[ConfigMap]:
    """A cache of this one alone; `name` as for any cache."""
    config_maps = client.collection(CONFIG_MAPS, namespace=at.namespace, fields=f"metadata.name={at.name}")
    return manager.cache(config_maps, name=name, optional=True)


class ClusterNetworksReconciler:
    """The only key is the ConfigMap's. `given` are networks that no object names; so are those of the EgressClusterInfo
    in `infos`, where that kind is served.
    """

    def __init__(
        self,
        *,
        client: ApiClient,
        caches: ClusterCaches,
        config_maps: Cache[ConfigMap],
        into: NamespacedName,
        infos: Cache[EgressClusterInfo] | None = None,
        given: Collection[OwnedNetwork],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._caches = caches
        self._config_maps = config_maps
        self._into = into
        self._infos = infos
        self._optional: tuple[Cache[Any], ...] = (caches.service_cidrs, caches.calico_pools, caches.cilium_nodes)
        if infos is not None:
            self._optional += (infos,)
        self._given = tuple(given)
        self._unusable: list[str] = []
        """What was told of last."""
        self._log = log

    def setup(self, term: Term, *, resync: float) -> None:
        caches = self._caches
        controller = term.controller("clusternetworks", self.reconcile)
        controller.watch(caches.nodes, self.of_node, batch_window=_BATCH_WINDOW)
        controller.watch(caches.pools, self.of_change)
        controller.watch(caches.service_cidrs, self.of_change, optional=True)
        controller.watch(caches.apiserver_service, self.of_change)
        controller.watch(caches.calico_pools, self.of_change, optional=True)
        controller.watch(caches.cilium_nodes, self.of_cilium_node, batch_window=_BATCH_WINDOW, optional=True)
        controller.watch(caches.kubeadm, self.of_change)
        controller.watch(caches.kube_proxy, self.of_change)
        controller.watch(caches.cilium, self.of_change)
        controller.watch(self._config_maps, self.of_change)
        if self._infos is not None:
            controller.watch(self._infos, self.of_info, optional=True)
        controller.resync(lambda: [str(self._into)], every=resync, at_start=True)

    def of_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """The key, where the Node's networks have changed."""
        before, after = ((node.addresses(), node.spec.pod_cidrs) if node is not None else None for node in (old, new))
        return [str(self._into)] if before != after else []

    def of_cilium_node(self, old: CiliumNode | None, new: CiliumNode | None) -> Iterable[str]:
        """The key, where the pod CIDRs have changed."""
        before, after = (None if node is None else node.spec.ipam.pod_cidrs for node in (old, new))
        return [str(self._into)] if before != after else []

    def of_info(self, old: EgressClusterInfo | None, new: EgressClusterInfo | None) -> Iterable[str]:
        """The key, where the networks have changed."""
        before, after = (None if info is None else info.spec.extra_cidr for info in (old, new))
        return [str(self._into)] if before != after else []

    def of_change(self, _old: object, _new: object) -> Iterable[str]:
        """The key."""
        return [str(self._into)]

    async def reconcile(self, key: str) -> Result:
        """Have the ConfigMap say what the caches do. Idempotent; raises ApiError."""
        caches = self._caches
        if unknown := [why for cache in self._optional if (why := describe_unsynced(cache, optional=True))]:
            self._log.debug("cluster's networks not known yet", why=unknown)
            return RequeueAfter(LOOK_AGAIN)
        config_map = self._config_maps.get(key)
        self._check_extra(config_map)
        others = collect_pod_and_service_networks(
            pools=caches.pools.items(),
            service_cidrs=caches.service_cidrs.items(),
            services=caches.apiserver_service.items(),
            others=(
                *find_foreign_networks(
                    calico_pools=caches.calico_pools.items(),
                    cilium_nodes=caches.cilium_nodes.items(),
                    cilium=caches.cilium.items(),
                    kubeadm=caches.kubeadm.items(),
                    kube_proxy=caches.kube_proxy.items(),
                ),
                *find_added_networks(
                    given=self._given,
                    config_maps=() if config_map is None else (config_map,),
                    infos=() if self._infos is None else self._infos.items(),
                ),
            ),
        )
        data = render_cluster_networks(nodes=collect_node_networks(caches.nodes.items()), others=others)
        if config_map is not None and data.items() <= config_map.data.items():
            return DONE
        try:
            await self._client.patch(CONFIG_MAPS, self._into.name, {"data": data}, namespace=self._into.namespace)
        except NotFoundError:
            self._log.error("there is no such ConfigMap, so nodes are not told the cluster's networks", name=key)
            return DONE
        self._log.info("cluster's networks published", name=key, pod_and_service_networks=len(others))
        return DONE

    def _check_extra(self, config_map: ConfigMap | None) -> None:
        """What an administrator has added and is unusable is logged when it changes."""
        unusable = find_unusable("" if config_map is None else config_map.data.get(EXTRA, ""))
        if unusable and unusable != self._unusable:
            self._log.warning("not networks of the cluster", name=str(self._into), key=EXTRA, ignored=unusable)
        self._unusable = unusable
