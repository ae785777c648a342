"""The cluster's networks are in the ConfigMap, whatever happens to either."""

from ipaddress import ip_network
from typing import Any, cast

import pytest
import structlog
from structlog.testing import LogCapture

from coil.crd.address_pool import ADDRESS_POOLS, AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.builtin import CONFIG_MAPS, NODES, SERVICE_CIDRS, SERVICES, ConfigMap, Node, ServiceCidr, ServiceCidrSpec
from coil.crd.cidr import OwnedNetwork
from coil.crd.egress_cluster_info import (
    CLUSTER_INFO,
    EGRESS_CLUSTER_INFOS,
    EgressClusterInfo,
    EgressClusterInfoStatus,
    NetworkPair,
)
from coil.crd.foreign_network import CALICO_POOLS, CILIUM_NODES, CalicoPool, CiliumNode
from coil.crd.meta import ObjectMeta
from coil.crd.resource import NamespacedName
from coil.egress.cluster_networks import POD_AND_SERVICE_NETWORKS
from coil.kube.errors import ApiError, NotFoundError, NotServedError, UnavailableError
from coil.manager.term import Term
from coil.reconcile.controller import DONE, RequeueAfter
from coil_egress_controller.egress.cluster_info_reconciler import ClusterInfoReconciler
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
        self.calico_pools: MemoryCache[CalicoPool] = MemoryCache(self.api, CALICO_POOLS)
        self.cilium_nodes: MemoryCache[CiliumNode] = MemoryCache(self.api, CILIUM_NODES)
        # Each is a cache of one ConfigMap, which has an API server of its own here.
        self.kubeadm_api, self.kube_proxy_api, self.cilium_api = MemoryApi(), MemoryApi(), MemoryApi()
        self.kubeadm: MemoryCache[ConfigMap] = MemoryCache(self.kubeadm_api, CONFIG_MAPS)
        self.kube_proxy: MemoryCache[ConfigMap] = MemoryCache(self.kube_proxy_api, CONFIG_MAPS)
        self.cilium: MemoryCache[ConfigMap] = MemoryCache(self.cilium_api, CONFIG_MAPS)
        self.caches = ClusterCaches(
            nodes=self.nodes,
            pools=MemoryCache(self.api, ADDRESS_POOLS),
            service_cidrs=MemoryCache(self.api, SERVICE_CIDRS),
            apiserver_service=MemoryCache(self.api, SERVICES),
            calico_pools=self.calico_pools,
            cilium_nodes=self.cilium_nodes,
            kubeadm=self.kubeadm,
            kube_proxy=self.kube_proxy,
            cilium=self.cilium,
        )
        self.config_maps: MemoryCache[ConfigMap] = MemoryCache(self.api, CONFIG_MAPS)
        self.infos: MemoryCache[EgressClusterInfo] = MemoryCache(self.api, EGRESS_CLUSTER_INFOS)
        self.logged = LogCapture()
        log = structlog.wrap_logger(None, processors=[self.logged])
        given = [OwnedNetwork(ip_network("198.51.100.0/24"), "a flag")]
        self.reconciler = ClusterNetworksReconciler(
            client=self.client,
            caches=self.caches,
            config_maps=self.config_maps,
            into=INTO,
            infos=self.infos,
            given=given,
            log=log,
        )
        self.info_reconciler = ClusterInfoReconciler(client=self.client, caches=self.caches, infos=self.infos, log=log)

    def look(self) -> None:
        caches = self.caches
        for cache in (
            caches.nodes,
            caches.pools,
            caches.service_cidrs,
            caches.apiserver_service,
            caches.calico_pools,
            caches.cilium_nodes,
            caches.kubeadm,
            caches.kube_proxy,
            caches.cilium,
            self.config_maps,
            self.infos,
        ):
            assert isinstance(cache, MemoryCache)
            cache.look()

    def create_config_map(self) -> None:
        metadata = {"namespace": INTO.namespace, "name": INTO.name}
        self.api.put(CONFIG_MAPS, {"metadata": metadata})

    async def reconcile(self, key: str = "networks") -> list[str]:
        """What the ConfigMap says then."""
        self.look()
        await self.reconciler.reconcile(str(INTO))
        found = self.api.get(CONFIG_MAPS, INTO.name, namespace=INTO.namespace)
        return found.data[key].split()


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


async def test_networks_of_other_programs_are_found(scene: Scene) -> None:
    scene.api.put(CALICO_POOLS, {"metadata": {"name": "pods"}, "spec": {"cidr": "192.168.0.0/16"}})
    scene.api.put(CALICO_POOLS, {"metadata": {"name": "wrong"}, "spec": {"cidr": "0.0.0.0/0"}})
    pod_cidrs = ["10.0.7.0/24", "fd00::7:0/112", "8.0.0.0/6"]
    scene.api.put(CILIUM_NODES, {"metadata": {"name": "n1"}, "spec": {"ipam": {"podCIDRs": pod_cidrs}}})
    configuration = "networking:\n  podSubnet: 10.244.0.0/16,fd01::/48\n  serviceSubnet: 10.96.0.0/12\n"
    kubeadm = {"metadata": {"namespace": "kube-system", "name": "kubeadm-config"}}
    scene.kubeadm_api.put(CONFIG_MAPS, {**kubeadm, "data": {"ClusterConfiguration": configuration}})
    kube_proxy = {"metadata": {"namespace": "kube-system", "name": "kube-proxy"}}
    scene.kube_proxy_api.put(CONFIG_MAPS, {**kube_proxy, "data": {"config.conf": "clusterCIDR: 172.20.0.0/16\n"}})
    cilium = {"metadata": {"namespace": "kube-system", "name": "cilium-config"}}
    scene.cilium_api.put(CONFIG_MAPS, {**cilium, "data": {"cluster-pool-ipv4-cidr": "10.0.0.0/16"}})
    scene.cilium_api.patch(
        CONFIG_MAPS, "cilium-config", {"data": {"cluster-pool-ipv6-cidr": "fd00::/64"}}, namespace="kube-system"
    )
    assert await scene.reconcile(POD_AND_SERVICE_NETWORKS) == [
        "10.0.7.0/24",
        "10.96.0.0/12",
        "10.244.0.0/16",
        "172.20.0.0/16",
        "192.168.0.0/16",
        "198.51.100.0/24",
        "fd00::7:0/112",
        "fd01::/48",
    ]
    assert await scene.reconcile() == ["198.51.100.0/24"], "private networks stay outside tunnels anyway"


async def test_the_cluster_info_of_egressgateway_adds_networks(scene: Scene) -> None:
    """Single addresses, too, as its documents have them. Another one than `default` counts for nothing."""
    before = await scene.reconcile(POD_AND_SERVICE_NETWORKS)
    extra = {"extraCidr": ["10.10.10.1", "fd00:7::/64", "10.99.0.7/16", "", "nonsense", "0.0.0.0/0"]}
    scene.api.put(EGRESS_CLUSTER_INFOS, {"metadata": {"name": "other"}, "spec": {"extraCidr": ["10.98.0.0/16"]}})
    scene.api.put(EGRESS_CLUSTER_INFOS, {"metadata": {"name": CLUSTER_INFO}, "spec": extra})
    found = await scene.reconcile(POD_AND_SERVICE_NETWORKS)
    assert sorted(set(found) - set(before)) == ["10.10.10.1/32", "10.99.0.0/16", "fd00:7::/64"]
    scene.api.delete(EGRESS_CLUSTER_INFOS, CLUSTER_INFO)
    assert await scene.reconcile(POD_AND_SERVICE_NETWORKS) == before


async def test_until_the_cluster_info_is_known_nothing_is_published(scene: Scene) -> None:
    """Without its networks, policies would take what goes there."""
    scene.infos.synced, scene.infos.last_error = False, UnavailableError("503", status=503)
    assert isinstance(await scene.reconciler.reconcile(str(INTO)), RequeueAfter)
    assert scene.client.calls == []


async def test_the_cluster_info_says_what_was_found(scene: Scene) -> None:
    pools = AddressPoolSpec(subnets=(SubnetSet(ipv4="100.96.0.0/16", ipv6="fd10::/64"), SubnetSet(ipv4="x")))
    scene.api.create(ADDRESS_POOLS, AddressPool(metadata=ObjectMeta(name="default"), spec=pools))
    scene.api.put(CALICO_POOLS, {"metadata": {"name": "pods"}, "spec": {"cidr": "192.168.0.0/16"}})
    configuration = "networking:\n  podSubnet: 10.244.0.0/16\n  serviceSubnet: 10.96.0.0/12,fd96::/112\n"
    kubeadm = {"metadata": {"namespace": "kube-system", "name": "kubeadm-config"}}
    scene.kubeadm_api.put(CONFIG_MAPS, {**kubeadm, "data": {"ClusterConfiguration": configuration}})
    scene.api.put(
        EGRESS_CLUSTER_INFOS, {"metadata": {"name": CLUSTER_INFO}, "spec": {"extraCidr": ["10.10.10.1", "x"]}}
    )

    async def status() -> EgressClusterInfoStatus:
        scene.look()
        await scene.info_reconciler.reconcile(CLUSTER_INFO)
        return scene.api.get(EGRESS_CLUSTER_INFOS, CLUSTER_INFO).status

    expected = EgressClusterInfoStatus(
        cluster_ip=NetworkPair(ipv4=("10.96.0.0/12",), ipv6=("fd96::/112",)),
        pod_cidr={
            "default": NetworkPair(ipv4=("100.96.0.0/16",), ipv6=("fd10::/64",)),
            "pods": NetworkPair(ipv4=("192.168.0.0/16",)),
        },
        extra_cidr=("10.10.10.1",),
    )
    assert await status() == expected
    [warning] = [entry for entry in scene.logged.entries if entry["log_level"] == "warning"]
    assert warning["ignored"] == ["x"]
    written = len(scene.client.calls)
    assert await status() == expected
    assert len(scene.client.calls) == written, "nothing to say"
    cidrs = ServiceCidrSpec(cidrs=("100.64.0.0/13",))
    scene.api.create(SERVICE_CIDRS, ServiceCidr(metadata=ObjectMeta(name="kubernetes"), spec=cidrs))
    assert (await status()).cluster_ip == NetworkPair(ipv4=("100.64.0.0/13",))
    scene.api.delete(EGRESS_CLUSTER_INFOS, CLUSTER_INFO)
    scene.look()
    assert await scene.info_reconciler.reconcile(CLUSTER_INFO) is DONE


class Watches:
    """A term, and a controller of it: which of the caches hold it up."""

    def __init__(self) -> None:
        self.required: list[Any] = []

    def controller(self, _name: str, _reconcile: object) -> "Watches":
        return self

    def watch(self, cache: object, _keys: object, *, batch_window: float = 0.0, optional: bool = False) -> None:
        if not optional:
            self.required.append(cache)

    def resync(self, _keys: object, *, every: float, at_start: bool) -> None:
        assert at_start


def test_no_kind_that_is_not_served_everywhere_holds_it_up(scene: Scene) -> None:
    """ServiceCIDRs before Kubernetes 1.33, and what other programs define."""
    watches, caches = Watches(), scene.caches
    scene.reconciler.setup(cast(Term, watches), resync=60)
    optional = (caches.service_cidrs, caches.calico_pools, caches.cilium_nodes, scene.infos)
    assert [cache for cache in watches.required if cache in optional] == []
    assert caches.nodes in watches.required


@pytest.mark.parametrize("kind", [NotServedError, NotFoundError])
async def test_a_kind_that_is_not_served_names_no_networks(scene: Scene, kind: type[ApiError]) -> None:
    caches: tuple[MemoryCache[Any], ...] = (scene.calico_pools, scene.cilium_nodes, scene.infos)
    for cache in caches:
        cache.synced, cache.last_error = False, kind("404", status=404)
    assert await scene.reconcile() == ["198.51.100.0/24"]


async def test_before_it_is_known_whether_a_kind_is_served_nothing_is_taken_out(scene: Scene) -> None:
    scene.api.put(CALICO_POOLS, {"metadata": {"name": "pods"}, "spec": {"cidr": "203.0.113.0/24"}})
    before = await scene.reconcile()
    assert before == ["198.51.100.0/24", "203.0.113.0/24"]
    scene.api.delete(CALICO_POOLS, "pods")
    scene.calico_pools.synced, scene.calico_pools.last_error = False, UnavailableError("503", status=503)
    assert await scene.reconcile() == before
    assert await scene.reconciler.reconcile(str(INTO)) == RequeueAfter(1.0)
    scene.calico_pools.synced, scene.calico_pools.last_error = True, None
    assert await scene.reconcile() == ["198.51.100.0/24"]


async def test_what_an_administrator_adds_counts_at_once_and_stays(scene: Scene) -> None:
    await scene.reconcile()
    extra = "203.0.113.0/24, 10.9.0.0/16\n2001:db8:9::/48 nonsense 0.0.0.0/0"
    scene.api.patch(CONFIG_MAPS, INTO.name, {"data": {"extra": extra}}, namespace=INTO.namespace)
    assert await scene.reconcile() == ["198.51.100.0/24", "203.0.113.0/24", "2001:db8:9::/48"]
    assert "10.9.0.0/16" in await scene.reconcile(POD_AND_SERVICE_NETWORKS)
    [told] = [entry for entry in scene.logged.entries if entry["log_level"] == "warning"]
    assert (told["key"], told["ignored"]) == ("extra", ["nonsense", "0.0.0.0/0"]), "once"
    assert scene.api.get(CONFIG_MAPS, INTO.name, namespace=INTO.namespace).data["extra"] == extra


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


async def test_what_else_cilium_writes_into_its_nodes_causes_nothing(scene: Scene) -> None:
    scene.api.put(CILIUM_NODES, {"metadata": {"name": "n1"}, "spec": {"ipam": {"podCIDRs": ["10.0.7.0/24"]}}})
    scene.look()
    before = scene.cilium_nodes.get("n1")
    scene.api.patch(CILIUM_NODES, "n1", {"metadata": {"annotations": {"a": "b"}}})
    scene.look()
    after = scene.cilium_nodes.get("n1")
    assert before != after
    assert list(scene.reconciler.of_cilium_node(before, after)) == []
    assert list(scene.reconciler.of_cilium_node(after, None)) == [str(INTO)]


async def test_without_a_config_map_nothing_is_made(scene: Scene) -> None:
    """The chart makes it: no role can allow the creation of one name."""
    scene.api.delete(CONFIG_MAPS, INTO.name, namespace=INTO.namespace)
    scene.look()
    await scene.reconciler.reconcile(str(INTO))
    assert scene.api.find_document(CONFIG_MAPS, INTO.name, INTO.namespace) is None
    scene.create_config_map()
    assert await scene.reconcile() == ["198.51.100.0/24"]
