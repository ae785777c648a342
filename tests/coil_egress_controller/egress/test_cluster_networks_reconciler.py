"""The cluster's networks are in the ConfigMap, whatever happens to either."""

from ipaddress import ip_network

import pytest
import structlog

from coil.crd.address_pool import ADDRESS_POOLS, AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.builtin import CONFIG_MAPS, NODES, SERVICE_CIDRS, SERVICES, ConfigMap, Node, ServiceCidr, ServiceCidrSpec
from coil.crd.meta import ObjectMeta
from coil.crd.resource import NamespacedName
from coil_egress_controller.egress.cluster_networks_reconciler import ClusterCaches, ClusterNetworksReconciler
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil.reconcile.memory_cache import MemoryCache

INTO = NamespacedName("kube-system", "coil-cluster-networks")


class Scene:
    """The reconciler on an API server in memory."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.client = MemoryClient(self.api)
        self.nodes: MemoryCache[Node] = MemoryCache(self.api, NODES)
        self.caches = ClusterCaches(
            nodes=self.nodes,
            pools=MemoryCache(self.api, ADDRESS_POOLS),
            service_cidrs=MemoryCache(self.api, SERVICE_CIDRS),
            apiserver_service=MemoryCache(self.api, SERVICES),
        )
        self.config_maps: MemoryCache[ConfigMap] = MemoryCache(self.api, CONFIG_MAPS)
        log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
        extra = [ip_network("198.51.100.0/24")]
        self.reconciler = ClusterNetworksReconciler(
            client=self.client,
            caches=self.caches,
            config_maps=self.config_maps,
            into=INTO,
            extra=extra,
            log=log,
        )

    def look(self) -> None:
        caches = self.caches
        for cache in (caches.nodes, caches.pools, caches.service_cidrs, caches.apiserver_service, self.config_maps):
            assert isinstance(cache, MemoryCache)
            cache.look()

    def create_config_map(self) -> None:
        metadata = {"namespace": INTO.namespace, "name": INTO.name}
        self.api.put(CONFIG_MAPS, {"metadata": metadata})

    async def reconcile(self) -> list[str]:
        """What the ConfigMap says then."""
        self.look()
        await self.reconciler.reconcile(str(INTO))
        found = self.api.get(CONFIG_MAPS, INTO.name, namespace=INTO.namespace)
        return found.data["networks"].split()


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.create_config_map()
    return scene


async def test_it_says_what_the_objects_do(scene: Scene) -> None:
    assert await scene.reconcile() == ["198.51.100.0/24"]
    spec = AddressPoolSpec(subnets=(SubnetSet(ipv4="100.96.0.0/16"),))
    scene.api.create(ADDRESS_POOLS, AddressPool(metadata=ObjectMeta(name="default"), spec=spec))
    cidrs = ServiceCidrSpec(cidrs=("100.64.0.0/13",))
    scene.api.create(SERVICE_CIDRS, ServiceCidr(metadata=ObjectMeta(name="kubernetes"), spec=cidrs))
    expected = ["100.64.0.0/13", "100.96.0.0/16", "198.51.100.0/24"]
    assert await scene.reconcile() == expected
    written = len(scene.client.calls)
    assert await scene.reconcile() == expected
    assert len(scene.client.calls) == written, "nothing to say"
    scene.api.patch(CONFIG_MAPS, INTO.name, {"data": {"networks": "edited"}}, namespace=INTO.namespace)
    assert await scene.reconcile() == expected
    scene.api.delete(ADDRESS_POOLS, "default")
    assert await scene.reconcile() == ["100.64.0.0/13", "198.51.100.0/24"]


async def test_heartbeats_of_nodes_cause_nothing(scene: Scene) -> None:
    scene.api.create(NODES, Node(metadata=ObjectMeta(name="n1")))
    scene.look()
    before = scene.nodes.get("n1")
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    scene.api.patch(NODES, "n1", {"status": status}, subresource="status")
    scene.look()
    after = scene.nodes.get("n1")
    assert before != after
    assert list(scene.reconciler.of_node(before, after)) == []
    entries = [{"type": "InternalIP", "address": "192.0.2.7"}]
    scene.api.patch(NODES, "n1", {"status": {"addresses": entries}}, subresource="status")
    scene.look()
    assert list(scene.reconciler.of_node(after, scene.nodes.get("n1"))) == [str(INTO)]
    assert "192.0.2.7/32" in await scene.reconcile()


async def test_without_a_config_map_nothing_is_made(scene: Scene) -> None:
    """The chart makes it: no role can allow the creation of one name."""
    scene.api.delete(CONFIG_MAPS, INTO.name, namespace=INTO.namespace)
    scene.look()
    await scene.reconciler.reconcile(str(INTO))
    assert scene.api.find_document(CONFIG_MAPS, INTO.name, INTO.namespace) is None
    scene.create_config_map()
    assert await scene.reconcile() == ["198.51.100.0/24"]
