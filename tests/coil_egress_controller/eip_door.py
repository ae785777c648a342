"""An API server as admission sees it: gateways, policies, namespaces and who has which right; and the way in."""

import asyncio
import json
from ipaddress import ip_network
from typing import Any, TypeVar

import msgspec
import structlog

from coil.admission.review import (
    AdmissionRequest,
    Allowed,
    Denied,
    Invalid,
    Operation,
    Unavailable,
    Verdict,
    decode_review,
)
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.builtin import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    SERVICE_CIDRS,
    SERVICES,
    SUBJECT_ACCESS_REVIEWS,
    ConfigMap,
)
from coil.crd.cidr import OwnedNetwork
from coil.crd.egress_cluster_info import EGRESS_CLUSTER_INFOS
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.crd.foreign_network import CALICO_POOLS, CILIUM_NODES
from coil.crd.resource import HasMetadata, NamespacedName, Resource, object_key
from coil.egress.cluster_networks import CILIUM, KUBE_PROXY, KUBEADM
from coil.kube.errors import ApiError
from coil_egress_controller.eip.admission_reader import AdmissionCaches, AdmissionReader
from coil_egress_controller.eip.cluster_objects import ClusterSettings
from tests.coil.kube.memory_api import Body, Call, MemoryApi, MemoryClient, Moment
from tests.coil_egress_controller.scene import MemoryCache

T = TypeVar("T", bound=HasMetadata)

CLUSTER_NETWORKS = NamespacedName("kube-system", "coil-cluster-networks")
SETTINGS = ClusterSettings(
    tunnels=[ip_network("172.31.0.0/16"), ip_network("fd11::/112")],
    given=[OwnedNetwork(ip_network("10.77.0.0/16"), "the cluster (--cluster-cidr)")],
    cluster_networks=CLUSTER_NETWORKS,
    serves_cluster_info=True,
)


class ReviewingClient(MemoryClient):
    """Answers SubjectAccessReviews: `rights` are users, with the namespaces where they may `use` podsubnet."""

    def __init__(self, api: MemoryApi) -> None:
        super().__init__(api, self._enter)
        self.rights: set[tuple[str, str]] = set()
        self.refusal: ApiError | None = None
        """Raised by every call."""
        self.silent = False
        """No call is ever answered."""

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        assert resource.plural == SUBJECT_ACCESS_REVIEWS.plural, "admission stores nothing"
        assert isinstance(body, dict)
        await self._enter(Call("create", resource.plural, ""), Moment.BEFORE)
        spec = body["spec"]
        asked = spec["resourceAttributes"]
        assert (asked["verb"], asked["group"], asked["resource"], asked["subresource"]) == (
            *("use", "egressgateway.spidernet.io"),
            *("egressgatewaypolicies", "podsubnet"),
        )
        allowed = (spec["user"], asked["namespace"]) in self.rights
        return msgspec.convert({"metadata": {}, "status": {"allowed": allowed}}, resource.type)

    async def _enter(self, _call: Call, _moment: Moment) -> None:
        if self.silent:
            await asyncio.Event().wait()
        if self.refusal is not None:
            raise self.refusal


class ConfigMapCache(MemoryCache[ConfigMap]):
    """Of one alone."""

    def __init__(self, api: MemoryApi, at: NamespacedName) -> None:
        super().__init__(api, CONFIG_MAPS)
        self._at = at

    def _present(self) -> list[ConfigMap]:
        return [each for each in super()._present() if object_key(each.metadata) == str(self._at)]


class AdmissionWorld:
    """What admission reads: the API server, and after `show_caches` the caches."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.client = ReviewingClient(self.api)
        self.reader = AdmissionReader(self.client, settings=SETTINGS, log=structlog.get_logger())

    def put(self, resource: Resource[T], item: T) -> None:
        self.api.put(resource, item)

    def add_namespace(self, name: str, **labels: str) -> None:
        self.api.put(NAMESPACES, {"metadata": {"name": name, "labels": labels}})

    def put_config_map(self, at: NamespacedName, **data: str) -> None:
        self.api.put(CONFIG_MAPS, {"metadata": {"namespace": at.namespace, "name": at.name}, "data": data})

    def put_cluster_networks(self) -> None:
        """What other programs say of the cluster's networks, and what administrators have added."""
        for name, cidr in (("pods", "10.50.0.0/16"), ("pods-v6", "fd50::/48")):
            self.api.put(CALICO_POOLS, {"metadata": {"name": name}, "spec": {"cidr": cidr}})
        pod_cidrs = {"podCIDRs": ["10.51.7.0/24", "fd51::700/120", "8.0.0.0/6"]}
        self.api.put(CILIUM_NODES, {"metadata": {"name": "n1"}, "spec": {"ipam": pod_cidrs}})
        pools = {"cluster-pool-ipv4-cidr": "10.51.0.0/16", "cluster-pool-ipv6-cidr": "fd51::/104"}
        self.put_config_map(CILIUM, **pools)
        networking = "networking: {podSubnet: 'fd52::/48', serviceSubnet: 10.52.0.0/16}"
        self.put_config_map(KUBEADM, ClusterConfiguration=networking)
        self.put_config_map(KUBE_PROXY, **{"config.conf": "clusterCIDR: '10.53.0.0/16,fd53::/48'"})
        self.put_config_map(CLUSTER_NETWORKS, extra="10.54.0.0/16 fd54::/48 0.0.0.0/0")
        self.api.put(EGRESS_CLUSTER_INFOS, {"metadata": {"name": "default"}, "spec": {"extraCidr": ["10.55.0.0/16"]}})

    def show_caches(self) -> AdmissionCaches:
        """Caches that know what there is now, and are never told of anything later."""
        caches = AdmissionCaches(
            gateways=MemoryCache(self.api, EGRESS_GATEWAYS),
            policies=MemoryCache(self.api, EGRESS_GATEWAY_POLICIES),
            namespaces=MemoryCache(self.api, NAMESPACES),
            nodes=MemoryCache(self.api, NODES),
            pools=MemoryCache(self.api, ADDRESS_POOLS),
            service_cidrs=MemoryCache(self.api, SERVICE_CIDRS),
            apiserver_service=MemoryCache(self.api, SERVICES),
            tunnels=MemoryCache(self.api, EGRESS_TUNNELS),
            calico_pools=MemoryCache(self.api, CALICO_POOLS),
            cilium_nodes=MemoryCache(self.api, CILIUM_NODES),
            cilium=ConfigMapCache(self.api, CILIUM),
            kubeadm=ConfigMapCache(self.api, KUBEADM),
            kube_proxy=ConfigMapCache(self.api, KUBE_PROXY),
            config_maps=ConfigMapCache(self.api, CLUSTER_NETWORKS),
            infos=MemoryCache(self.api, EGRESS_CLUSTER_INFOS),
        )
        for name in AdmissionCaches.__dataclass_fields__:
            getattr(caches, name).look()
        self.reader.use(caches)
        return caches


def request(operation: Operation, new: Any, old: Any = None, *, user: str = "jane") -> AdmissionRequest:
    metadata = (new or old)["metadata"]
    body = {
        "uid": "uid-1",
        "kind": {"group": "egressgateway.spidernet.io", "version": "v1beta1", "kind": "Any"},
        "operation": operation.value,
        "name": metadata["name"],
        "namespace": metadata.get("namespace", ""),
        "userInfo": {"username": user, "groups": ["system:authenticated"]},
        "object": new,
        "oldObject": old,
    }
    return decode_review(
        json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": body}).encode()
    )


def said(verdict: Verdict) -> list[str]:
    """What is refused, as text; nothing if it is let in."""
    match verdict:
        case Allowed():
            return []
        case Invalid(errors):
            return [str(error) for error in errors]
        case Denied(reason) | Unavailable(reason):
            return [f"{type(verdict).__name__.lower()}: {reason}"]
