"""What admission reads of the cluster when it checks gateways and policies, and of the request itself.

That is the live state, and the caches' when the API server does not answer in time. Every replica answers reviews
before its caches are synced; until then there is only the live state.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from structlog.typing import FilteringBoundLogger

from coil.admission.review import AdmissionRequest, ReviewError, UserInfo, decode_object
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.builtin import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    SERVICE_CIDRS,
    SERVICES,
    SUBJECT_ACCESS_REVIEWS,
    ConfigMap,
    Namespace,
    Node,
    Service,
    ServiceCidr,
)
from coil.crd.egress_cluster_info import EGRESS_CLUSTER_INFOS, EgressClusterInfo
from coil.crd.egress_gateway import EGRESS_GATEWAYS, EgressGateway
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES, EgressGatewayPolicy
from coil.crd.egress_policy import EGRESS_CLUSTER_POLICIES, EgressClusterPolicy
from coil.crd.egress_tunnel import EGRESS_TUNNELS, EgressTunnel
from coil.crd.foreign_network import CALICO_POOLS, CILIUM_NODES, CalicoPool, CiliumNode
from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import HasMetadata, NamespacedName, Resource
from coil.egress.cluster_networks import CILIUM, KUBE_PROXY, KUBEADM
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, NotFoundError
from coil.reconcile.cache import Cache, describe_unsynced
from coil_egress_controller.eip.cluster_objects import ClusterObjects, ClusterSettings

T = TypeVar("T", bound=HasMetadata)
Answer = TypeVar("Answer")

ASK_SECONDS = 1.5
"""For one call. A review makes at most five, one after the other, and `coil.admission.server` allows 8 for all."""
CLUSTER_SECONDS = 3.0
"""For all that says which addresses are the cluster's own, while the caches do not have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionCaches:
    """Each of the ConfigMaps has a cache of its own. `config_maps` and `infos` are None where nothing is read there."""

    gateways: Cache[EgressGateway]
    policies: Cache[EgressGatewayPolicy]
    namespaces: Cache[Namespace]
    nodes: Cache[Node]
    pools: Cache[AddressPool]
    service_cidrs: Cache[ServiceCidr]
    apiserver_service: Cache[Service]
    """Of the API server alone, which is in a network of Services also where no ServiceCIDR says so."""
    tunnels: Cache[EgressTunnel]
    calico_pools: Cache[CalicoPool]
    cilium_nodes: Cache[CiliumNode]
    cilium: Cache[ConfigMap]
    kubeadm: Cache[ConfigMap]
    kube_proxy: Cache[ConfigMap]
    config_maps: Cache[ConfigMap] | None
    infos: Cache[EgressClusterInfo] | None

    @property
    def synced(self) -> bool:
        return self.gateways.synced and self.policies.synced and self.namespaces.synced

    @property
    def know_cluster(self) -> bool:
        """Whether all is known of the cluster's own addresses. Not every cluster serves all of the kinds."""
        required = (self.nodes, self.apiserver_service, self.cilium, self.kubeadm, self.kube_proxy, self.config_maps)
        optional = (self.pools, self.service_cidrs, self.tunnels, self.calico_pools, self.cilium_nodes, self.infos)
        return all(cache is None or cache.synced for cache in required) and all(
            cache is None or describe_unsynced(cache, optional=True) is None for cache in optional
        )

    def cluster(self, settings: ClusterSettings) -> ClusterObjects:
        """What is known of it."""
        return ClusterObjects(
            settings=settings,
            nodes=self.nodes.items(),
            pools=self.pools.items(),
            service_cidrs=self.service_cidrs.items(),
            services=self.apiserver_service.items(),
            tunnels=self.tunnels.items(),
            infos=_items(self.infos),
            calico_pools=self.calico_pools.items(),
            cilium_nodes=self.cilium_nodes.items(),
            cilium=self.cilium.items(),
            kubeadm=self.kubeadm.items(),
            kube_proxy=self.kube_proxy.items(),
            config_maps=_items(self.config_maps),
        )


class UnknownStateError(Exception):
    """The state is unknown at the moment; the message says of what."""


class AdmissionReader:
    """All methods raise UnknownStateError. Cancelled, they leave nothing behind."""

    def __init__(self, client: ApiClient, *, settings: ClusterSettings, log: FilteringBoundLogger) -> None:
        self._client = client
        self._settings = settings
        self._log = log
        self._caches: AdmissionCaches | None = None

    def use(self, caches: AdmissionCaches) -> None:
        """Fall back to these caches from when all of them are synced."""
        self._caches = caches

    async def gateways(self) -> Sequence[EgressGateway]:
        return await self._list(EGRESS_GATEWAYS, lambda caches: caches.gateways)

    async def namespaces(self) -> Sequence[Namespace]:
        return await self._list(NAMESPACES, lambda caches: caches.namespaces)

    async def policies(self) -> Sequence[EgressGatewayPolicy]:
        return await self._list(EGRESS_GATEWAY_POLICIES, lambda caches: caches.policies)

    async def known_policies(self) -> Sequence[EgressGatewayPolicy]:
        """The cached ones, as policies may be many and are created often; the live ones while there is no cache."""
        caches = self._synced_caches()
        return await self.policies() if caches is None else caches.policies.items()

    async def cluster(self) -> ClusterObjects:
        """What says which addresses are the cluster's own: as the caches know it, as Nodes are many; as it is now while
        there is no cache.
        """
        caches = self._caches
        if caches is not None and caches.know_cluster:
            return caches.cluster(self._settings)
        try:
            async with asyncio.timeout(CLUSTER_SECONDS):
                return await self._read_cluster()
        except (ApiError, TimeoutError) as error:
            raise UnknownStateError(f"the cluster's own addresses cannot be read now: {_said(error)}") from error

    async def gateway(self, name: str) -> EgressGateway | None:
        """None if there is none of that name."""
        return await self._get(EGRESS_GATEWAYS, name, lambda caches: caches.gateways)

    async def cluster_policy(self, name: str) -> EgressClusterPolicy | None:
        """None if there is none of that name. Asked of the API server alone, as it may just have been created."""
        try:
            return await self._ask(self._client.get(EGRESS_CLUSTER_POLICIES, name))
        except NotFoundError:
            return None
        except (ApiError, TimeoutError) as error:
            raise UnknownStateError(
                f"{EGRESS_CLUSTER_POLICIES.plural} {name} cannot be read now: {_said(error)}"
            ) from error

    async def namespace(self, name: str) -> Namespace | None:
        """None if there is none of that name."""
        return await self._get(NAMESPACES, name, lambda caches: caches.namespaces)

    async def may(self, user: UserInfo, *, verb: str, resource: str, subresource: str, namespace: str) -> bool:
        """Whether the API server grants `user` a right on resources of the group of EgressGateways in a namespace."""
        attributes = {
            "verb": verb,
            "group": EGRESS_GATEWAY_POLICIES.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": namespace,
        }
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra.items()},
            "resourceAttributes": attributes,
        }
        try:
            review = await self._ask(self._client.create(SUBJECT_ACCESS_REVIEWS, {"metadata": {}, "spec": spec}))
        except (ApiError, TimeoutError) as error:
            raise UnknownStateError(f"the API server does not say who has which right: {_said(error)}") from error
        return review.status.allowed

    async def _list(self, resource: Resource[T], cache: Callable[[AdmissionCaches], Cache[T]]) -> Sequence[T]:
        try:
            return await self._ask(self._client.list(resource))
        except (ApiError, TimeoutError) as error:
            return self._instead(cache, resource.plural, error).items()

    async def _get(self, resource: Resource[T], name: str, cache: Callable[[AdmissionCaches], Cache[T]]) -> T | None:
        try:
            return await self._ask(self._client.get(resource, name))
        except NotFoundError:
            return None
        except (ApiError, TimeoutError) as error:
            return self._instead(cache, f"{resource.plural} {name}", error).get(name)

    async def _read_cluster(self) -> ClusterObjects:
        settings, client = self._settings, self._client
        (
            (nodes, pools, service_cidrs, services, tunnels, infos),
            (calico_pools, cilium_nodes),
            config_maps,
        ) = await asyncio.gather(
            asyncio.gather(
                client.list(NODES),
                self._served(client.list(ADDRESS_POOLS)),
                self._served(client.list(SERVICE_CIDRS)),
                self._served(self._list_apiserver_service()),
                self._served(client.list(EGRESS_TUNNELS)),
                self._list_infos(),
            ),
            asyncio.gather(
                self._served(client.list(CALICO_POOLS)),
                self._served(client.list(CILIUM_NODES)),
            ),
            asyncio.gather(*map(self._list_config_map, (CILIUM, KUBEADM, KUBE_PROXY, settings.cluster_networks))),
        )
        return ClusterObjects(
            settings=settings,
            nodes=nodes,
            pools=pools,
            service_cidrs=service_cidrs,
            services=services,
            tunnels=tunnels,
            infos=infos,
            calico_pools=calico_pools,
            cilium_nodes=cilium_nodes,
            cilium=config_maps[0],
            kubeadm=config_maps[1],
            kube_proxy=config_maps[2],
            config_maps=config_maps[3],
        )

    async def _list_apiserver_service(self) -> Sequence[Service]:
        return [await self._client.get(SERVICES, "kubernetes", namespace="default")]

    async def _list_infos(self) -> Sequence[EgressClusterInfo]:
        if not self._settings.serves_cluster_info:
            return ()
        return await self._served(self._client.list(EGRESS_CLUSTER_INFOS))

    async def _list_config_map(self, at: NamespacedName | None) -> Sequence[ConfigMap]:
        """One or none. Listed, as the controller may list and watch it, but not get it."""
        if at is None:
            return ()
        return await self._client.list(CONFIG_MAPS, namespace=at.namespace, fields=f"metadata.name={at.name}")

    @staticmethod
    async def _served(objects: Awaitable[Sequence[T]]) -> Sequence[T]:
        """None of a kind that the API server does not serve, and of one that does not exist."""
        try:
            return await objects
        except NotFoundError:
            return ()

    async def _ask(self, question: Awaitable[Answer]) -> Answer:
        async with asyncio.timeout(ASK_SECONDS):
            return await question

    def _instead(self, cache: Callable[[AdmissionCaches], Cache[T]], what: str, error: Exception) -> Cache[T]:
        caches = self._synced_caches()
        if caches is None:
            raise UnknownStateError(f"{what} cannot be read now: {_said(error)}") from error
        self._log.warning("admission falls back to the cache", what=what, error=_said(error))
        return cache(caches)

    def _synced_caches(self) -> AdmissionCaches | None:
        return self._caches if self._caches is not None and self._caches.synced else None


def _items(cache: Cache[T] | None) -> Sequence[T]:
    return () if cache is None else cache.items()


def _said(error: Exception) -> str:
    return str(error) or "no answer in time"


class _AnyObject(Struct, frozen=True, kw_only=True):
    """An object whose spec is not decoded yet; it may be anything."""

    metadata: ObjectMeta
    spec: Any = None


def changes_spec(request: AdmissionRequest) -> bool:
    """Whether an update changes the spec. Raises ReviewError for what is no object."""
    new, old = decode_object(request.object, _AnyObject), decode_object(request.old_object, _AnyObject)
    return bool(new.spec != old.spec)


def try_decode(raw: Any, kind: type[Answer]) -> Answer | None:
    """The object before a change; None if it cannot be decoded, so that the new one is checked like a creation."""
    try:
        return decode_object(raw, kind)
    except ReviewError:
        return None
