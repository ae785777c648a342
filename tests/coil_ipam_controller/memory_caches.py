"""Caches for the reconcilers that show a `MemoryApi` as it was when they last looked."""

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest
from coil.crd.builtin import NODES, SERVICE_CIDRS, SERVICES, Node, Service, ServiceCidr
from coil_ipam_controller.caches import BLOCK_INDEXERS, REQUEST_INDEXERS, Caches
from tests.coil.kube.memory_api import MemoryApi
from tests.coil.reconcile.memory_cache import MemoryCache


class MemoryCaches:
    """The caches; `all` is what reconcilers get."""

    def __init__(self, api: MemoryApi) -> None:
        self.pools: MemoryCache[AddressPool] = MemoryCache(api, ADDRESS_POOLS)
        self.blocks: MemoryCache[AddressBlock] = MemoryCache(api, ADDRESS_BLOCKS, BLOCK_INDEXERS)
        self.requests: MemoryCache[BlockRequest] = MemoryCache(api, BLOCK_REQUESTS, REQUEST_INDEXERS)
        self.nodes: MemoryCache[Node] = MemoryCache(api, NODES)
        self.service_cidrs: MemoryCache[ServiceCidr] = MemoryCache(api, SERVICE_CIDRS)
        self.services: MemoryCache[Service] = MemoryCache(api, SERVICES)
        self.all = Caches(
            pools=self.pools,
            blocks=self.blocks,
            requests=self.requests,
            nodes=self.nodes,
            service_cidrs=self.service_cidrs,
            apiserver_service=self.services,
        )

    def look(self) -> None:
        """Bring all caches up to date."""
        for cache in (self.pools, self.nodes, self.service_cidrs, self.services, self.blocks, self.requests):
            cache.look()
