"""EgressClusterInfo: the cluster's own networks, as egressgateway 0.6 has them. Only the one named `default` counts."""

from typing import Final

import msgspec

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.names import EIP_GROUP, EIP_VERSION
from coil.crd.resource import Resource

CLUSTER_INFO: Final = "default"


class AutoDetect(Struct, frozen=True, kw_only=True):
    """What is to be found. Coil always finds all of it, so this decides nothing."""

    # The API writes "clusterIP" and "nodeIP"; the struct's camel case would ask for "clusterIp".
    cluster_ip: bool = msgspec.field(name="clusterIP", default=True)
    node_ip: bool = msgspec.field(name="nodeIP", default=True)
    pod_cidr_mode: str = "auto"


class EgressClusterInfoSpec(Struct, frozen=True, kw_only=True):
    """`extra_cidr` are networks, or single addresses, that no object names."""

    auto_detect: AutoDetect = AutoDetect()
    extra_cidr: tuple[str, ...] = ()


class NetworkPair(Struct, frozen=True, kw_only=True):
    """Networks of both families, as texts."""

    ipv4: tuple[str, ...] = ()
    ipv6: tuple[str, ...] = ()


class EgressClusterInfoStatus(Struct, frozen=True, kw_only=True):
    """What was found: networks of Services, those of pods by the name of their pool, and what `extra_cidr` adds.

    Without egressgateway's `nodeIP`, which lists all Nodes: it would not fit into one object in a large cluster.
    """

    cluster_ip: NetworkPair = msgspec.field(name="clusterIP", default=NetworkPair())
    pod_cidr: dict[str, NetworkPair] = msgspec.field(name="podCIDR", default_factory=dict)
    extra_cidr: tuple[str, ...] = ()


class EgressClusterInfo(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: EgressClusterInfoSpec = EgressClusterInfoSpec()
    status: EgressClusterInfoStatus = EgressClusterInfoStatus()


EGRESS_CLUSTER_INFOS: Resource[EgressClusterInfo] = Resource(
    EIP_GROUP, EIP_VERSION, "egressclusterinfos", "EgressClusterInfo", namespaced=False, type=EgressClusterInfo
)
