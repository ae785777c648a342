"""What coil-raven has for Services: caches in every replica, and in each term of the leader a reconciler."""

from collections.abc import Callable
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import SERVICES, Service
from coil.crd.endpoint_slice import ENDPOINT_SLICES, EndpointSlice
from coil.kube.api_client import ApiClient
from coil.kube.client import KubeClient
from coil.manager.manager import Manager
from coil.manager.term import Term
from coil.neutron.identity import ClusterId
from coil.neutron.resource import NetworkId, ProjectId
from coil.openstack.neutron import Neutron
from coil.openstack.octavia import Octavia
from coil.reconcile.cache import Cache
from coil.reconcile.event_recorder import Recorder
from coil_raven.balancers import Balancers
from coil_raven.cluster_router import ClusterRouter
from coil_raven.floating_ips import FloatingIps
from coil_raven.owned import OwnedObjects
from coil_raven.service_cache import SERVICE_INDEXERS, SLICE_INDEXERS
from coil_raven.service_reconciler import ServiceReconciler
from coil_raven.settings import Settings
from coil_raven.vip_subnets import VipSubnets


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """What load balancers are made in. `public` is the network of floating IPs, None if there are none."""

    neutron: Neutron
    octavia: Octavia
    cluster: ClusterId
    public: NetworkId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancing:
    """Make one with `open`. `clock` is in monotonic seconds, `random` gives [0, 1)."""

    cloud: Cloud
    settings: Settings
    client: ApiClient
    services: Cache[Service]
    slices: Cache[EndpointSlice]
    recorder: Recorder
    clock: Callable[[], float]
    random: Callable[[], float]
    log: FilteringBoundLogger

    @classmethod
    def open(
        cls,
        manager: Manager,
        cloud: Cloud,
        *,
        settings: Settings,
        client: KubeClient,
        recorder: Recorder,
        clock: Callable[[], float],
        random: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> "LoadBalancing":
        """With caches that are followed from now on."""
        return cls(
            cloud=cloud,
            settings=settings,
            client=client,
            services=manager.cache(client.collection(SERVICES), indexers=SERVICE_INDEXERS),
            slices=manager.cache(client.collection(ENDPOINT_SLICES), indexers=SLICE_INDEXERS),
            recorder=recorder,
            clock=clock,
            random=random,
            log=log,
        )

    def setup(self, term: Term, *, router: ClusterRouter, owned: OwnedObjects) -> ServiceReconciler:
        """Reconcile Services in this term."""
        cloud, settings = self.cloud, self.settings
        project = ProjectId(settings.project)
        supernets = [each.network for each in settings.supernets]
        reconciler = ServiceReconciler(
            client=self.client,
            services=self.services,
            slices=self.slices,
            balancers=Balancers(
                cloud.octavia,
                cluster=cloud.cluster,
                provider=settings.provider,
                log=self.log,
                clock=self.clock,
                random=self.random,
            ),
            floating_ips=FloatingIps(cloud.neutron, cluster=cloud.cluster, external=cloud.public, log=self.log),
            vips=VipSubnets(
                cloud.neutron,
                cluster=cloud.cluster,
                router=router,
                owned=owned,
                ranges=settings.service_cidrs,
                project=project,
            ),
            provider=settings.provider,
            balancer_class=settings.load_balancer_class,
            inside=[*supernets, *(each.subnet for each in settings.service_cidrs)],
            project=project,
            resync=settings.gc_interval,
            recorder=self.recorder,
            log=self.log,
        )
        reconciler.setup(term)
        return reconciler
