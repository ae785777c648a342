"""What coil-raven has for Services: caches in every replica, and in each term of the leader a reconciler."""

from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import SERVICES, Service
from coil.crd.endpoint_slice import ENDPOINT_SLICES, EndpointSlice
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
    """Make one with `open`."""

    cloud: Cloud
    settings: Settings
    client: KubeClient
    services: Cache[Service]
    slices: Cache[EndpointSlice]
    recorder: Recorder
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
            log=log,
        )

    def setup(self, term: Term, *, router: ClusterRouter, owned: OwnedObjects) -> None:
        """Reconcile Services in this term."""
        cloud, provider = self.cloud, self.settings.provider
        project = ProjectId(self.settings.project)
        supernets = [each.network for each in self.settings.supernets]
        ServiceReconciler(
            client=self.client,
            services=self.services,
            slices=self.slices,
            balancers=Balancers(self.cloud.octavia, cluster=self.cloud.cluster, provider=provider, log=self.log),
            floating_ips=FloatingIps(
                self.cloud.neutron, cluster=self.cloud.cluster, external=self.cloud.public, log=self.log
            ),
            vips=VipSubnets(
                cloud.neutron,
                cluster=cloud.cluster,
                router=router,
                owned=owned,
                ranges=self.settings.service_cidrs,
                project=project,
            ),
            provider=provider,
            balancer_class=self.settings.load_balancer_class,
            inside=[*supernets, *(each.subnet for each in self.settings.service_cidrs)],
            project=project,
            resync=self.settings.gc_interval,
            recorder=self.recorder,
            log=self.log,
        ).setup(term)
