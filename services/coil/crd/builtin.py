"""Kubernetes' own kinds, reduced to the fields that the suite reads, and Events with those that it writes."""

from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import msgspec

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource

INTERNAL_IP: Final = "InternalIP"
OWN_TYPES: Final = (INTERNAL_IP, "ExternalIP")
"""The types of a Node's addresses that are IP addresses of its own."""
LARGEST_POD_CIDR: Final = {4: 16, 6: 48}
"""By IP version, the shortest prefixes of a node's pod CIDR that are believed. Where nobody has set it, a node can do
so itself, and what is the cluster's own is reached with a pod's own address, and is in no gateway.
"""


class NodeAddress(Struct, frozen=True, kw_only=True):
    type: str
    address: str


class NodeCondition(Struct, frozen=True, kw_only=True):
    """Without the time of the last heartbeat, which changes all the time, and the texts."""

    type: str
    status: str
    last_transition_time: datetime | None = None


class NodeStatus(Struct, frozen=True, kw_only=True):
    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()


class NodeSpec(Struct, frozen=True, kw_only=True):
    """`pod_cidrs` are what Kubernetes gave the node for its pods, where it does that."""

    # The API writes "podCIDRs"; the struct's camel case would ask for "podCidrs".
    pod_cidrs: tuple[str, ...] = msgspec.field(name="podCIDRs", default=())


class Node(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready_condition(self) -> NodeCondition | None:
        """None: nothing has been reported about the node yet."""
        return next((condition for condition in self.status.conditions if condition.type == "Ready"), None)

    @property
    def ready(self) -> bool:
        """Whether Kubernetes considers the node ready; not if that is unknown."""
        return self.ready_condition is not None and self.ready_condition.status == "True"

    def addresses(self, *types: str) -> list[IPv4Address | IPv6Address]:
        """Its addresses of these types, InternalIP and ExternalIP if none is named, in kubelet's order. What is no
        address is passed over.
        """
        found: list[IPv4Address | IPv6Address] = []
        for entry in self.status.addresses:
            if entry.type in (types or OWN_TYPES):
                try:
                    found.append(ip_address(entry.address))
                except ValueError:
                    continue
        return found

    def pod_networks(self) -> list[IPv4Network | IPv6Network]:
        """The networks of its pods. What is no network is passed over, and so is what no node can need."""
        found: list[IPv4Network | IPv6Network] = []
        for text in self.spec.pod_cidrs:
            try:
                network = ip_network(text, strict=False)
            except ValueError:
                continue
            if network.prefixlen >= LARGEST_POD_CIDR[network.version]:
                found.append(network)
        return found


class Namespace(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta


class PodIP(Struct, frozen=True, kw_only=True):
    ip: str


class PodSpec(Struct, frozen=True, kw_only=True):
    node_name: str = ""
    host_network: bool = False


class PodCondition(Struct, frozen=True, kw_only=True):
    type: str
    status: str = ""


class PodStatus(Struct, frozen=True, kw_only=True):
    phase: str = ""
    # The API writes "podIPs"; the struct's camel case would ask for "podIps".
    pod_ips: tuple[PodIP, ...] = msgspec.field(name="podIPs", default=())
    conditions: tuple[PodCondition, ...] = ()


class Pod(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ready(self) -> bool:
        """Whether it serves: its condition Ready is True, and it is not being deleted."""
        return not self.metadata.deleting and any(
            condition.type == "Ready" and condition.status == "True" for condition in self.status.conditions
        )


MIRROR_POD = "kubernetes.io/config.mirror"
"""Annotation of a static pod's mirror, which the API server lets nobody add to a pod that exists."""

STATIC_POD_UID = "kubernetes.io/config.hash"
"""Annotation of a mirror: the UID by which kubelet and runtime know the static pod. The mirror's own is another."""


def pod_uids(pod: Pod) -> list[str]:
    """The UIDs by which a pod may be known: a static pod has two.

    The API server lets nobody make a mirror out of a pod that exists, but a pod may be created as one.
    """
    annotations = pod.metadata.annotations
    static = annotations.get(STATIC_POD_UID, "") if MIRROR_POD in annotations else ""
    return [uid for uid in (pod.metadata.uid, static) if uid]


class ServicePort(Struct, frozen=True, kw_only=True):
    """`name` may be "" where a Service has one port only. `target_port` is resolved in its EndpointSlices, `node_port`
    0 where there is none.
    """

    port: int
    name: str = ""
    protocol: str = "TCP"
    node_port: int = 0


class ServiceSpec(Struct, frozen=True, kw_only=True):
    """One address per family, the preferred one first; "None" for a headless Service."""

    # The API writes "clusterIP"; the struct's camel case would ask for "clusterIp".
    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    cluster_ips: tuple[str, ...] = msgspec.field(name="clusterIPs", default=())
    type: str = "ClusterIP"
    ports: tuple[ServicePort, ...] = ()
    session_affinity: str = "None"
    external_traffic_policy: str = ""
    internal_traffic_policy: str = ""
    external_ips: tuple[str, ...] = msgspec.field(name="externalIPs", default=())
    load_balancer_ip: str = msgspec.field(name="loadBalancerIP", default="")
    load_balancer_class: str = ""
    load_balancer_source_ranges: tuple[str, ...] = ()


class LoadBalancerIngress(Struct, frozen=True, kw_only=True):
    ip: str = ""


class LoadBalancerStatus(Struct, frozen=True, kw_only=True):
    ingress: tuple[LoadBalancerIngress, ...] = ()


class ServiceStatus(Struct, frozen=True, kw_only=True):
    load_balancer: LoadBalancerStatus = LoadBalancerStatus()


class Service(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


class ServiceCidrSpec(Struct, frozen=True, kw_only=True):
    cidrs: tuple[str, ...] = ()


class ServiceCidr(Struct, frozen=True, kw_only=True):
    """A network of Services; in the API since Kubernetes 1.33, beta from 1.31."""

    metadata: ObjectMeta
    spec: ServiceCidrSpec = ServiceCidrSpec()


class ConfigMap(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    data: dict[str, str] = msgspec.field(default_factory=dict)


class DeploymentStatus(Struct, frozen=True, kw_only=True):
    replicas: int = 0


class Deployment(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    status: DeploymentStatus = DeploymentStatus()


class PodDisruptionBudget(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta


class ServiceAccount(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta


class RoleBinding(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta


class Subject(Struct, frozen=True, kw_only=True):
    """Whole, because a list of subjects can only be written as a whole."""

    kind: str
    name: str
    api_group: str = ""
    namespace: str = ""


class ClusterRoleBinding(Struct, frozen=True, kw_only=True):
    """Go writes an empty slice as null."""

    metadata: ObjectMeta
    subjects: tuple[Subject, ...] | None = None


NODES: Resource[Node] = Resource("", "v1", "nodes", "Node", namespaced=False, type=Node)
NAMESPACES: Resource[Namespace] = Resource("", "v1", "namespaces", "Namespace", namespaced=False, type=Namespace)
PODS: Resource[Pod] = Resource("", "v1", "pods", "Pod", namespaced=True, type=Pod)
SERVICE_CIDRS: Resource[ServiceCidr] = Resource(
    "networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", namespaced=False, type=ServiceCidr
)
SERVICES: Resource[Service] = Resource("", "v1", "services", "Service", namespaced=True, type=Service)
CONFIG_MAPS: Resource[ConfigMap] = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=ConfigMap)
DEPLOYMENTS: Resource[Deployment] = Resource(
    "apps", "v1", "deployments", "Deployment", namespaced=True, type=Deployment
)
SERVICE_ACCOUNTS: Resource[ServiceAccount] = Resource(
    "", "v1", "serviceaccounts", "ServiceAccount", namespaced=True, type=ServiceAccount
)
ROLE_BINDINGS: Resource[RoleBinding] = Resource(
    *("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"), namespaced=True, type=RoleBinding
)
CLUSTER_ROLE_BINDINGS: Resource[ClusterRoleBinding] = Resource(
    *("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding"),
    namespaced=False,
    type=ClusterRoleBinding,
)

POD_DISRUPTION_BUDGETS: Resource[PodDisruptionBudget] = Resource(
    *("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    namespaced=True,
    type=PodDisruptionBudget,
)


class AccessReviewStatus(Struct, frozen=True, kw_only=True):
    """Without `allowed`, no role grants it; that an authorizer denied it expressly makes no difference here."""

    allowed: bool = False


class SubjectAccessReview(Struct, frozen=True, kw_only=True):
    """Whether somebody has a right: the answer; the question is written as a document. Creating one stores nothing."""

    metadata: ObjectMeta = ObjectMeta()
    status: AccessReviewStatus = AccessReviewStatus()


SUBJECT_ACCESS_REVIEWS: Resource[SubjectAccessReview] = Resource(
    *("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview"),
    namespaced=False,
    type=SubjectAccessReview,
)


CLUSTER_EVENT_NAMESPACE = "default"
"""Where Events about objects without a namespace are kept."""

MESSAGE_BYTES = 1024
"""The API's limit on a message."""


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class ObjectReference(Struct, frozen=True, kw_only=True):
    """Which object it is about. Without a `uid` it is the object of that name, whichever life of it.

    The API server requires no field of it, and others leave out what they have no word for.
    """

    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class EventSource(Struct, frozen=True, kw_only=True):
    component: str = ""
    host: str = ""


class Event(Struct, frozen=True, kw_only=True):
    """A sentence for people about one object (core/v1), shown by `kubectl describe` and kept for an hour or so.

    Of the two served forms this is the one that every tool reads, `count` and timestamps included. The API server wants
    an Event in the namespace of its object, and one about an object without a namespace in `default`.

    `reason` is one CamelCase word for machines. `count` occurrences, from the first to the last timestamp.

    Source and reporting component say the same: older tools read the one, newer ones the other.
    """

    metadata: ObjectMeta
    involved_object: ObjectReference
    type: str = ""
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    count: int = 0
    reporting_component: str = ""
    reporting_instance: str = ""


EVENTS: Resource[Event] = Resource("", "v1", "events", "Event", namespaced=True, type=Event)
