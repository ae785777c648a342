"""Pods as the controller keeps them for endpoint slices: all of a cluster's, so only what decides about an endpoint.

Most of a pod is in its annotations, and nothing here reads them: names that no document has keep them out.
"""

import msgspec

from coil.crd.builtin import Pod
from coil.crd.meta import ObjectMeta, OwnerReference
from coil.crd.resource import Resource
from coil.eip.slice_packing import endpoint_of


class LabelMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata whose annotations, owners and finalizers are not read."""

    annotations: dict[str, str] = msgspec.field(name="-annotations", default_factory=dict)
    finalizers: tuple[str, ...] = msgspec.field(name="-finalizers", default=())
    owner_references: tuple[OwnerReference, ...] = msgspec.field(name="-ownerReferences", default=())


class EipPod(Pod, frozen=True, kw_only=True):
    metadata: LabelMeta


EIP_PODS: Resource[EipPod] = Resource("", "v1", "pods", "Pod", namespaced=True, type=EipPod)


def is_endpoint(pod: EipPod) -> bool:
    """Whether it has addresses of its own, and something runs there."""
    return endpoint_of(pod) is not None
