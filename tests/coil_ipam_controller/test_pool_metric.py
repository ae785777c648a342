"""The fill level of pools, as a scrape sees it."""

from prometheus_client import CollectorRegistry

from coil.crd.address_pool import ADDRESS_POOLS, SubnetSet
from coil_ipam_controller.pool_status import PoolCollector
from tests.coil.kube.memory_api import MemoryApi
from tests.coil_ipam_controller.memory_caches import MemoryCaches
from tests.coil_ipam_controller.scene import add_block, add_pool


def test_pools_come_and_go() -> None:
    api = MemoryApi()
    caches = MemoryCaches(api)
    registry = CollectorRegistry(auto_describe=True)
    PoolCollector(caches.all, registry)

    def level(pool: str) -> tuple[float | None, float | None]:
        labels = {"pool": pool}
        return (
            registry.get_sample_value("coil_controller_max_blocks", labels),
            registry.get_sample_value("coil_controller_allocated_blocks", labels),
        )

    assert level("default") == (None, None)
    add_pool(api, "default", SubnetSet(ipv4="10.2.0.0/24"), SubnetSet(ipv4="10.3.0.0/26"))
    add_pool(api, "broken", SubnetSet(ipv4="nonsense"))
    add_pool(api, "late", SubnetSet(ipv4="10.2.0.0/23"))
    add_block(api, "default-0", 0, pool="default", node="node1")
    add_block(api, "late-1", 1, pool="late", node="node1")
    caches.look()
    assert level("default") == (10, 1)
    assert level("broken") == (0, 0)
    assert level("late") == (8 + 1, 1), "of the eight that the older pool has as well, only one that exists"
    api.patch(ADDRESS_POOLS, "default", {"metadata": {"finalizers": []}}, subresource="")
    api.delete(ADDRESS_POOLS, "default")
    caches.look()
    assert level("default") == (None, None)
