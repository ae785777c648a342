"""Kubernetes' own kinds, reduced to the fields that the suite reads."""

from datetime import datetime

import msgspec

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource


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


class Node(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    status: NodeStatus = NodeStatus()


class Namespace(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta


class PodIP(Struct, frozen=True, kw_only=True):
    ip: str


class PodSpec(Struct, frozen=True, kw_only=True):
    node_name: str = ""
    host_network: bool = False


class PodStatus(Struct, frozen=True, kw_only=True):
    phase: str = ""
    # The API writes "podIPs"; the struct's camel case would ask for "podIps".
    pod_ips: tuple[PodIP, ...] = msgspec.field(name="podIPs", default=())


class Pod(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


NODES: Resource[Node] = Resource("", "v1", "nodes", "Node", namespaced=False, type=Node)
NAMESPACES: Resource[Namespace] = Resource("", "v1", "namespaces", "Namespace", namespaced=False, type=Namespace)
PODS: Resource[Pod] = Resource("", "v1", "pods", "Pod", namespaced=True, type=Pod)
