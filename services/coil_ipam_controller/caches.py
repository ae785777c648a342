"""The caches of the controller and their indexes: what all replicas know of the cluster, leader or not.

Custom resources are listed from the API server's store, as no request and no deletion of a pool may be missed.
Blocks and nodes are tens of thousands and come from its memory: no decision takes the cache's word for a block, or for
the absence of a node (see BlockRequestReconciler and NodeReconciler).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest
from coil.crd.builtin import NODES, SERVICE_CIDRS, SERVICES, Node, Service, ServiceCidr
from coil.ipam.cluster_network import ClusterNetworks
from coil.kube.client import KubeClient
from coil.kube.collection import Freshness
from coil.manager.manager import Manager
from coil.reconcile.cache import Cache, describe_unsynced

BY_POOL: Final = "pool"
BY_NODE: Final = "node"
BY_REQUEST: Final = "request"


def _present(*values: str) -> list[str]:
    return [value for value in values if value]


BLOCK_INDEXERS: Mapping[str, Callable[[AddressBlock], Iterable[str]]] = {
    BY_POOL: lambda block: _present(block.pool),
    BY_NODE: lambda block: _present(block.node),
    BY_REQUEST: lambda block: _present(block.request),
}
REQUEST_INDEXERS: Mapping[str, Callable[[BlockRequest], Iterable[str]]] = {
    BY_NODE: lambda request: _present(request.spec.node_name),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """Blocks are indexed by pool, node and the UID of the request that they answer; requests by node."""

    pools: Cache[AddressPool]
    blocks: Cache[AddressBlock]
    requests: Cache[BlockRequest]
    nodes: Cache[Node]
    service_cidrs: Cache[ServiceCidr]
    apiserver_service: Cache[Service]
    """The Service of the API server alone."""
    networks: ClusterNetworks = field(default_factory=ClusterNetworks)
    """The cluster's own addresses, as these caches tell them."""

    @classmethod
    def follow(cls, manager: Manager, kube: KubeClient, *, pools_optional: bool = False) -> "Caches":
        """With `pools_optional`, a cluster without these kinds is a cluster without pools."""
        cached, optional = Freshness.CACHED, pools_optional
        blocks = kube.collection(ADDRESS_BLOCKS, freshness=cached)
        return cls(
            pools=manager.cache(kube.collection(ADDRESS_POOLS), optional=optional),
            blocks=manager.cache(blocks, indexers=BLOCK_INDEXERS, optional=optional),
            requests=manager.cache(kube.collection(BLOCK_REQUESTS), indexers=REQUEST_INDEXERS, optional=optional),
            nodes=manager.cache(kube.collection(NODES, freshness=cached)),
            service_cidrs=manager.cache(kube.collection(SERVICE_CIDRS, freshness=cached), optional=True),
            apiserver_service=manager.cache(
                kube.collection(SERVICES, namespace="default", fields="metadata.name=kubernetes", freshness=cached)
            ),
        )

    @property
    def know_networks(self) -> bool:
        """Whether `networks` has all that the API server can tell. Not every version serves ServiceCIDRs."""
        required = self.nodes.synced and self.apiserver_service.synced
        return required and describe_unsynced(self.service_cidrs, optional=True) is None

    def __post_init__(self) -> None:
        self.nodes.subscribe(self.networks.observe_node)
        self.service_cidrs.subscribe(self.networks.observe_service_cidr)
        self.apiserver_service.subscribe(self.networks.observe_service)
