"""What a round is told of the cluster's networks."""

from ipaddress import ip_network

from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.builtin import CONFIG_MAPS, NODES
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.crd.names import NodeName
from coil_egress_agent.eip.change_tracker import BY_POLICY, ENDPOINT_SLICES, Caches, ChangeTracker, index_by_policy
from coil_egress_agent.eip.node_pods import NodePods
from tests.coil.kube.memory_api import MemoryApi
from tests.coil.reconcile.memory_cache import MemoryCache

PLACE = {"namespace": "kube-system", "name": "coil-cluster-networks"}


async def test_networks_of_pools_and_those_that_the_controller_has_found() -> None:
    api = MemoryApi()
    pools, config_maps = MemoryCache(api, ADDRESS_POOLS), MemoryCache(api, CONFIG_MAPS)
    tracker = ChangeTracker(
        Caches(
            gateways=MemoryCache(api, EGRESS_GATEWAYS),
            policies=MemoryCache(api, EGRESS_GATEWAY_POLICIES),
            slices=MemoryCache(api, ENDPOINT_SLICES, indexers={BY_POLICY: index_by_policy}),
            tunnels=MemoryCache(api, EGRESS_TUNNELS),
            pools=pools,
            cluster_networks=config_maps,
            nodes=MemoryCache(api, NODES),
        ),
        NodePods(),
        node=NodeName("n1"),
    )
    tracker.follow()
    assert tracker.take().networks == frozenset()
    assert tracker.take().networks is None, "nothing has changed"

    api.put(ADDRESS_POOLS, {"metadata": {"name": "default"}, "spec": {"subnets": [{"ipv4": "10.2.0.0/16"}]}})
    data = {"networks": "", "pod-and-service-networks": "192.168.0.0/16\nfd01::/48\n"}
    api.put(CONFIG_MAPS, {"metadata": PLACE, "data": data})
    pools.look()
    config_maps.look()
    assert tracker.changed.is_set()
    snapshot = tracker.take()
    wanted = frozenset(map(ip_network, ("10.2.0.0/16", "192.168.0.0/16", "fd01::/48")))
    assert snapshot.networks == wanted
    tracker.put_back(snapshot)
    assert tracker.take().networks == wanted, "the round came to nothing"

    api.patch(CONFIG_MAPS, PLACE["name"], {"data": {"extra": "10.9.0.0/16"}}, namespace=PLACE["namespace"])
    config_maps.look()
    assert tracker.take().networks is None, "the controller has not said so yet"
    api.patch(
        CONFIG_MAPS,
        PLACE["name"],
        {"data": {"pod-and-service-networks": "10.9.0.0/16\n"}},
        namespace=PLACE["namespace"],
    )
    config_maps.look()
    assert tracker.take().networks == frozenset(map(ip_network, ("10.2.0.0/16", "10.9.0.0/16")))
