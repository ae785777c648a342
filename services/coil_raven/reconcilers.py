"""Makes the reconcilers of a term: of namespaces, of pods and, where load balancers are wanted, of Services."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Counter
from structlog.typing import FilteringBoundLogger

from coil.kube.api_client import ApiClient
from coil.manager.term import Term
from coil.neutron.handoff import BRIDGE
from coil.neutron.resource import ProjectId, RouterId
from coil.reconcile.event_recorder import Recorder
from coil_raven.caches import Caches
from coil_raven.cluster_router import ClusterRouter
from coil_raven.cooldown import Cooldown
from coil_raven.load_balancing import Cloud, LoadBalancing
from coil_raven.namespace_group import GroupPolicy
from coil_raven.namespace_network import NamespaceNetworks
from coil_raven.namespace_reconciler import NamespaceReconciler, Networks
from coil_raven.owned import OwnedObjects
from coil_raven.pod_ports import PodPorts
from coil_raven.pod_reconciler import PodReconciler
from coil_raven.pool_reconciler import PoolReconciler
from coil_raven.port_pool import PortPools
from coil_raven.port_status import PortStatus
from coil_raven.settings import Settings
from coil_raven.view import RavenView, TermView


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcilers:
    """One for each process. `router` is the administrator's, None where one is made.

    `view` shows what the present term knows. `clock` is in monotonic seconds, `random` gives [0, 1).
    """

    settings: Settings
    cloud: Cloud
    router: RouterId | None
    client: ApiClient
    caches: Caches
    load_balancing: LoadBalancing | None
    recorder: Recorder
    remedies: Counter
    view: RavenView
    clock: Callable[[], float]
    random: Callable[[], float]
    log: FilteringBoundLogger

    def setup(self, term: Term) -> None:
        """Declare them, with a memory of their own: what an earlier term knew is out of date."""
        settings, cloud, caches, log = self.settings, self.cloud, self.caches, self.log
        project = ProjectId(settings.project)
        networks = Networks()
        router = ClusterRouter(
            cloud.neutron, cluster=cloud.cluster, given=self.router, public=cloud.public, project=project, log=log
        )
        policy = GroupPolicy(
            isolated=settings.isolate_namespaces,
            # Members of one that keeps the clients' addresses see these, and not the load balancer's.
            balancers=() if settings.provider.keeps_clients else tuple(each.subnet for each in settings.service_cidrs),
            enforced_by_nodes=settings.port_type == BRIDGE,
        )
        owned = OwnedObjects(cloud.neutron, cluster=cloud.cluster, log=log)
        maker = NamespaceNetworks(
            cloud.neutron,
            cluster=cloud.cluster,
            router=router,
            supernets=settings.supernets,
            policy=policy,
            owned=owned,
            log=log,
        )
        NamespaceReconciler(
            client=self.client,
            namespaces=caches.namespaces,
            pods=caches.pods,
            maker=maker,
            networks=networks,
            project=project,
            resync=settings.gc_interval,
            recorder=self.recorder,
            log=log,
        ).setup(term)
        pools = PortPools(cloud.neutron, cluster=cloud.cluster, size=settings.port_pool_size, clock=self.clock, log=log)
        PoolReconciler(pools=pools, networks=networks, pods=caches.pods, nodes=caches.nodes, log=log).setup(term)
        ports = PodPorts(cloud.neutron, cluster=cloud.cluster, pools=pools, log=log)
        PodReconciler(
            client=self.client,
            pods=caches.pods,
            ports=ports,
            statuses=PortStatus(ports, clock=self.clock, random=self.random, log=log),
            remedies=self.remedies,
            networks=networks,
            nodes=caches.nodes,
            port_type=settings.port_type,
            workers=settings.concurrency,
            cooldown=Cooldown(settings.port_cooling, clock=self.clock),
            resync=settings.gc_interval,
            recorder=self.recorder,
            log=log,
        ).setup(term)
        services = None if self.load_balancing is None else self.load_balancing.setup(term, router=router, owned=owned)
        term.on_end(self.view.clear)
        self.view.show(TermView(networks=networks, maker=maker, ports=ports, services=services))
