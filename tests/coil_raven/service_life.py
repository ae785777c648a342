"""A life of coil-raven's leader between an API server, a Neutron and an Octavia in memory, as far as Services go."""

from collections.abc import Sequence
from ipaddress import ip_network
from typing import Any

import structlog

from coil.crd.builtin import SERVICES, Service
from coil.crd.endpoint_slice import ENDPOINT_SLICES, SERVICE_LABEL, EndpointSlice
from coil.kube.errors import ApiError
from coil.neutron.provider import PROVIDERS
from coil.neutron.resource import NetworkId
from coil.neutron.vip_range import VipRange
from coil.openstack.error import OpenStackError
from coil_raven.balancers import Balancers
from coil_raven.cluster_router import ClusterRouter
from coil_raven.floating_ips import FloatingIps
from coil_raven.owned import OwnedObjects
from coil_raven.service_cache import SERVICE_INDEXERS, SLICE_INDEXERS
from coil_raven.service_reconciler import ServiceReconciler
from coil_raven.vip_subnets import VipSubnets
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil.openstack.memory_neutron import MemoryNeutron
from tests.coil.openstack.memory_octavia import MemoryOctavia
from tests.coil.reconcile.memory_cache import MemoryCache
from tests.coil_ipam_controller.memory_recorder import MemoryRecorder
from tests.coil_raven.life import CLUSTER, PROJECT

CLASS = "coil.cybozu.com/octavia"
RANGES = (VipRange.around(ip_network("10.96.0.0/16")), VipRange.around(ip_network("fd00:96::/112")))
HTTP = {"name": "http", "port": 80, "protocol": "TCP"}


class ServiceLife:
    """One term, with caches and memory of its own. `settle` does what its workers would do until nothing is left."""

    def __init__(
        self,
        client: MemoryClient,
        neutron: MemoryNeutron,
        octavia: MemoryOctavia,
        *,
        provider: str = "amphora",
        public: NetworkId | None,
    ) -> None:
        log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
        self.api = client.api
        self.octavia = octavia
        self.events = MemoryRecorder()
        self.now = 0.0
        self.services: MemoryCache[Service] = MemoryCache(client.api, SERVICES, SERVICE_INDEXERS)
        self.slices: MemoryCache[EndpointSlice] = MemoryCache(client.api, ENDPOINT_SLICES, SLICE_INDEXERS)
        router = ClusterRouter(neutron, cluster=CLUSTER, given=None, public=public, project=PROJECT, log=log)
        self.reconciler = ServiceReconciler(
            client=client,
            services=self.services,
            slices=self.slices,
            balancers=Balancers(
                octavia, cluster=CLUSTER, provider=PROVIDERS[provider], log=log, clock=lambda: self.now
            ),
            floating_ips=FloatingIps(neutron, cluster=CLUSTER, external=public, log=log),
            vips=VipSubnets(
                neutron,
                cluster=CLUSTER,
                router=router,
                owned=OwnedObjects(neutron, cluster=CLUSTER, log=log),
                ranges=RANGES,
                project=PROJECT,
            ),
            provider=PROVIDERS[provider],
            balancer_class=CLASS,
            inside=(ip_network("10.0.0.0/8"),),
            project=PROJECT,
            resync=600.0,
            recorder=self.events,
            log=log,
        )

    async def step(self) -> list[Exception]:
        """Each Service once, and what is left of others; what was raised is returned, as it is tried again later."""
        for cache in (self.services, self.slices):
            cache.look()
        errors: list[Exception] = []
        async for uid in self.reconciler._all():
            try:
                await self.reconciler.reconcile(uid)
            except (OpenStackError, ApiError) as error:
                errors.append(error)
        return errors

    async def settle(self, *, rounds: int = 40, settling: bool = True) -> list[Exception]:
        """Round after round, in which Octavia's providers do their work, too; the errors of the last one."""
        errors: list[Exception] = []
        for _ in range(rounds):
            errors = await self.step()
            self.now += 5.0
            if settling:
                self.octavia.settle()
        return errors


def add_service(api: MemoryApi, name: str = "web", *, namespace: str = "default", **spec: Any) -> Service:
    body = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"], "type": "ClusterIP", "ports": [HTTP], **spec},
    }
    return api.create(SERVICES, body)


def change_service(api: MemoryApi, name: str = "web", **spec: Any) -> None:
    document = api.find_document(SERVICES, name, "default")
    assert document is not None
    document["spec"].update(spec)
    if document["spec"]["type"] != "LoadBalancer":
        # As the API server does it.
        document.pop("status", None)
    api.put(SERVICES, document)


def put_endpoints(api: MemoryApi, addresses: Sequence[str], *, service: str = "web", port: int = 8080) -> None:
    """Of IPv4, all of them ready, in one slice."""
    api.put(
        ENDPOINT_SLICES,
        {
            "metadata": {"name": f"{service}-1", "namespace": "default", "labels": {SERVICE_LABEL: service}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        },
    )


def ingress(api: MemoryApi, name: str = "web") -> list[str]:
    """Where the Service is said to be reached."""
    return [each.ip for each in api.get(SERVICES, name, "default").status.load_balancer.ingress]
