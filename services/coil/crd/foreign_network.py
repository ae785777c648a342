"""Objects of other programs that say which networks a cluster has: only what is read of them."""

import msgspec

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource


class CalicoPoolSpec(Struct, frozen=True, kw_only=True):
    cidr: str = ""


class CalicoPool(Struct, frozen=True, kw_only=True):
    """Calico's IPPool."""

    metadata: ObjectMeta
    spec: CalicoPoolSpec = CalicoPoolSpec()


class CiliumIpam(Struct, frozen=True, kw_only=True):
    # The API writes "podCIDRs"; the struct's camel case would ask for "podCidrs".
    pod_cidrs: tuple[str, ...] = msgspec.field(name="podCIDRs", default=())


class CiliumNodeSpec(Struct, frozen=True, kw_only=True):
    ipam: CiliumIpam = CiliumIpam()


class CiliumNode(Struct, frozen=True, kw_only=True):
    """What Cilium's own IPAM gives to a node. A node's agent may write its own."""

    metadata: ObjectMeta
    spec: CiliumNodeSpec = CiliumNodeSpec()


CALICO_POOLS: Resource[CalicoPool] = Resource(
    "crd.projectcalico.org", "v1", "ippools", "IPPool", namespaced=False, type=CalicoPool
)
CILIUM_NODES: Resource[CiliumNode] = Resource(
    "cilium.io", "v2", "ciliumnodes", "CiliumNode", namespaced=False, type=CiliumNode
)
