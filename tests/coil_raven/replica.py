"""A replica of coil-raven between an API server, a Neutron and an Octavia in memory: the reconcilers of the product, in
terms that begin and end when the test says so.
"""

import asyncio
from collections.abc import Callable
from random import Random

from coil.crd.builtin import NAMESPACES, NODES, PODS, SERVICES
from coil.crd.endpoint_slice import ENDPOINT_SLICES
from coil.neutron.resource import NetworkId, RouterId
from coil.openstack.neutron import Neutron
from coil.openstack.octavia import Octavia
from coil.runtime.flag import parse_settings
from coil_raven.caches import NAMESPACE_INDEXERS, POD_INDEXERS, Caches
from coil_raven.load_balancing import Cloud, LoadBalancing
from coil_raven.pod_reconciler import remedies_counter
from coil_raven.recent_events import RecentEvents
from coil_raven.reconcilers import Reconcilers
from coil_raven.service_cache import SERVICE_INDEXERS, SLICE_INDEXERS
from coil_raven.settings import Settings
from coil_raven.view import RavenView
from tests.coil.kube.memory_api import BIRTH, MemoryClient
from tests.coil.manager.replica import LOG, Replica
from tests.coil.reconcile.memory_cache import MemoryCache
from tests.coil_ipam_controller.memory_recorder import MemoryRecorder
from tests.coil_raven.life import CLUSTER

FLAGS = ("--supernets=10.0.0.0/10,fd00::/48", "--service-cidrs=10.96.0.0/16", "--project=project")


def parse(*flags: str) -> Settings:
    return parse_settings(Settings, flags, {}, program="coil-raven", about="")


class RavenReplica(Replica):
    """`flags` come after `FLAGS`: of two of one name, the last counts."""

    def __init__(
        self,
        client: MemoryClient,
        neutron: Neutron,
        octavia: Octavia,
        *flags: str,
        public: NetworkId | None = None,
        router: RouterId | None = None,
        random: Callable[[], float] | None = None,
    ) -> None:
        random = random or Random(1).random
        self.client = client
        self.settings = parse(*FLAGS, *flags)
        api = client.api
        self.namespaces = MemoryCache(api, NAMESPACES, NAMESPACE_INDEXERS)
        self.pods = MemoryCache(api, PODS, POD_INDEXERS)
        self.nodes = MemoryCache(api, NODES)
        self.services = MemoryCache(api, SERVICES, SERVICE_INDEXERS)
        self.slices = MemoryCache(api, ENDPOINT_SLICES, SLICE_INDEXERS)
        self.told = MemoryRecorder()
        self.events = RecentEvents(self.told, now=lambda: BIRTH)
        self.view = RavenView()
        self.caches = Caches(namespaces=self.namespaces, pods=self.pods, nodes=self.nodes)
        clock = asyncio.get_running_loop().time
        cloud = Cloud(neutron=neutron, octavia=octavia, cluster=CLUSTER, public=public)
        self.load_balancing = (
            LoadBalancing(
                cloud=cloud,
                settings=self.settings,
                client=client,
                services=self.services,
                slices=self.slices,
                recorder=self.events,
                clock=clock,
                random=random,
                log=LOG,
            )
            if self.settings.service_cidrs
            else None
        )
        reconcilers = Reconcilers(
            settings=self.settings,
            cloud=cloud,
            router=router,
            client=client,
            caches=self.caches,
            load_balancing=self.load_balancing,
            recorder=self.events,
            remedies=remedies_counter(),
            view=self.view,
            clock=clock,
            random=random,
            log=LOG,
        )
        super().__init__(reconcilers.setup, self.look)

    def look(self) -> None:
        """Bring the caches up to date."""
        for cache in (self.nodes, self.namespaces, self.pods, self.services, self.slices):
            cache.look()
