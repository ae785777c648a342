"""A life of coil-raven's leader between an API server and a Neutron in memory."""

import asyncio
from collections.abc import Sequence
from ipaddress import ip_network
from typing import Any

import structlog

from coil.crd.builtin import NAMESPACES, NODES, PODS, Pod
from coil.kernel.family import IPNetwork
from coil.kube.errors import ApiError
from coil.neutron.handoff import ANNOTATION_PORT, Handoff, parse_handoff
from coil.neutron.identity import ClusterId
from coil.neutron.resource import ProjectId
from coil.neutron.supernet import Supernet
from coil.openstack.error import OpenStackError
from coil_raven.caches import NAMESPACE_INDEXERS, POD_INDEXERS
from coil_raven.cluster_router import ClusterRouter
from coil_raven.cooldown import Cooldown
from coil_raven.namespace_group import GroupPolicy
from coil_raven.namespace_network import NamespaceNetworks
from coil_raven.namespace_reconciler import NamespaceReconciler, Networks
from coil_raven.owned import OwnedObjects
from coil_raven.pod_ports import PodPorts
from coil_raven.pod_reconciler import PodReconciler, remedies_counter
from coil_raven.pool_reconciler import PoolReconciler
from coil_raven.port_pool import QUIET_SECONDS, PortPools
from coil_raven.port_status import PortStatus
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil.openstack.memory_neutron import MemoryNeutron
from tests.coil.reconcile.memory_cache import MemoryCache
from tests.coil_ipam_controller.memory_recorder import MemoryRecorder

CLUSTER = ClusterId("stage")
PROJECT = ProjectId("project-of-the-cluster")
SUPERNETS = (Supernet(ip_network("10.0.0.0/8"), 16), Supernet(ip_network("fd00::/48"), 64))


class Life:
    """One term, with caches and memory of its own. `settle` does what its workers would do."""

    def __init__(
        self,
        client: MemoryClient,
        neutron: MemoryNeutron,
        *,
        supernets: Sequence[Supernet] = SUPERNETS,
        isolated: bool = False,
        balancers: Sequence[IPNetwork] = (),
        port_type: str = "bridge",
        pool_size: int = 0,
        cooling: float = 0.0,
    ) -> None:
        log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
        self.api = client.api
        self.client = client
        self.neutron = neutron
        self.events = MemoryRecorder()
        self.namespaces = MemoryCache(client.api, NAMESPACES, NAMESPACE_INDEXERS)
        self.pods: MemoryCache[Pod] = MemoryCache(client.api, PODS, POD_INDEXERS)
        self.nodes = MemoryCache(client.api, NODES)
        self.networks = Networks()
        self.pools = PortPools(neutron, cluster=CLUSTER, size=pool_size, clock=_now, log=log)
        self.ports = PodPorts(neutron, cluster=CLUSTER, pools=self.pools, log=log)
        self.statuses = PortStatus(self.ports, clock=_now, random=lambda: 0.0, log=log)
        router = ClusterRouter(neutron, cluster=CLUSTER, given=None, public=None, project=PROJECT, log=log)
        self.owned = OwnedObjects(neutron, cluster=CLUSTER, log=log, sleep=self._sleep)
        self.maker = NamespaceNetworks(
            neutron,
            cluster=CLUSTER,
            router=router,
            supernets=supernets,
            policy=GroupPolicy(isolated=isolated, balancers=tuple(balancers)),
            owned=self.owned,
            log=log,
        )
        self.pauses: list[float] = []
        self.namespace_reconciler = NamespaceReconciler(
            client=client,
            namespaces=self.namespaces,
            pods=self.pods,
            maker=self.maker,
            networks=self.networks,
            project=PROJECT,
            resync=600.0,
            recorder=self.events,
            log=log,
        )
        self.pod_reconciler = PodReconciler(
            client=client,
            pods=self.pods,
            ports=self.ports,
            statuses=self.statuses,
            remedies=remedies_counter(),
            networks=self.networks,
            nodes=self.nodes,
            cooldown=Cooldown(cooling, clock=_now),
            port_type=port_type,
            workers=1,
            resync=600.0,
            recorder=self.events,
            log=log,
        )

        self.pool_reconciler = PoolReconciler(
            pools=self.pools, networks=self.networks, pods=self.pods, nodes=self.nodes, log=log
        )

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def look(self) -> None:
        """Bring the caches up to date."""
        for cache in (self.nodes, self.namespaces, self.pods):
            cache.look()

    async def settle(self, *, seconds: float = QUIET_SECONDS) -> list[Exception]:
        """Reconcile everything once, namespaces first; what was raised is returned, as it is tried again later.

        So many seconds pass between the pods and the pools.
        """
        self.look()
        errors: list[Exception] = []
        present = {namespace.metadata.uid for namespace in self.namespaces.items()}
        for uid in sorted(present | {network.uid for network in self.networks.present.values()}):
            try:
                await self.namespace_reconciler.reconcile(uid)
            except (OpenStackError, ApiError) as error:
                errors.append(error)
        try:
            await self.ports.load()
        except OpenStackError as error:
            return [*errors, error]
        uids = self.ports.uids() | {pod.metadata.uid for pod in self.pods.items()}
        for uid in sorted(uids):
            try:
                await self.pod_reconciler.reconcile(uid)
            except (OpenStackError, ApiError) as error:
                errors.append(error)
        await asyncio.sleep(seconds)
        for pool in sorted(map(str, self.pools.pool_keys())):
            try:
                await self.pool_reconciler.reconcile(pool)
            except OpenStackError as error:
                errors.append(error)
        return errors


def _now() -> float:
    return asyncio.get_running_loop().time()


def add_namespace(api: MemoryApi, name: str, **annotations: str) -> None:
    api.create(NAMESPACES, {"metadata": {"name": name, "annotations": annotations}})


def delete_namespace(api: MemoryApi, name: str) -> None:
    """As `kubectl delete` does it, after the pods in it have gone."""
    api.delete(NAMESPACES, name)


def add_pod(api: MemoryApi, name: str, *, namespace: str = "default", node: str = "node-a", **spec: Any) -> Pod:
    body = {"metadata": {"name": name, "namespace": namespace}, "spec": {"nodeName": node, **spec}}
    return api.create(PODS, body)


def handoff(api: MemoryApi, name: str, namespace: str = "default") -> Handoff | None:
    """What the pod's node is told of its port."""
    pod = api.get(PODS, name, namespace)
    text = pod.metadata.annotations.get(ANNOTATION_PORT)
    return None if text is None else parse_handoff(text, pod_uid=pod.metadata.uid)
