"""Egress: a group of SNAT router pods and the destinations that they are for, as the API server stores it.

Strings stay strings here, so that one with nonsense in it can still be decoded, listed and reported. What the router
pods look like is the API server's vocabulary, not ours: `template`, `strategy` and the rest of what becomes a
Deployment, a Service and a PodDisruptionBudget are kept as the documents that they are.
"""

from typing import Any

from msgspec import field

from coil.crd.meta import LabelSelector, ObjectMeta, Struct
from coil.crd.names import GROUP, VERSION
from coil.crd.resource import Resource

DEFAULT_SESSION_AFFINITY = "ClientIP"


class EgressSpec(Struct, frozen=True, kw_only=True):
    """`fou_source_port_auto` lets the kernel choose the source port of each flow; otherwise it is the fixed port.
    `allowed_namespaces` selects by labels the namespaces whose pods are served; None allows all.
    """

    destinations: tuple[str, ...] = ()
    replicas: int = 1
    strategy: dict[str, Any] | None = None
    template: dict[str, Any] | None = None
    session_affinity: str = DEFAULT_SESSION_AFFINITY
    session_affinity_config: dict[str, Any] | None = None
    fou_source_port_auto: bool = False
    pod_disruption_budget: dict[str, Any] | None = None
    allowed_namespaces: LabelSelector | None = None


class EgressStatus(Struct, frozen=True, kw_only=True):
    """For the scale subresource: how many router pods there are, and the label selector that finds them.

    `observed_generation` is that of the spec by which the Deployment and the Service were last made. `cluster_networks`
    are the cluster's own networks that are not private: no part of a destination that contains them.
    """

    observed_generation: int = 0
    replicas: int = 0
    selector: str = ""
    cluster_networks: tuple[str, ...] = ()


class Egress(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: EgressSpec = EgressSpec()
    status: EgressStatus = EgressStatus()


EGRESSES: Resource[Egress] = Resource(GROUP, VERSION, "egresses", "Egress", namespaced=True, type=Egress)


class ClientEgressMeta(ObjectMeta, frozen=True, kw_only=True):
    """Without annotations, one of which may be the whole object (`kubectl apply`)."""

    annotations: dict[str, str] = field(name="-annotations", default_factory=dict)


class ClientEgressSpec(EgressSpec, frozen=True, kw_only=True):
    """Without what is about router pods."""

    strategy: dict[str, Any] | None = field(name="-strategy", default=None)
    template: dict[str, Any] | None = field(name="-template", default=None)
    session_affinity_config: dict[str, Any] | None = field(name="-sessionAffinityConfig", default=None)
    pod_disruption_budget: dict[str, Any] | None = field(name="-podDisruptionBudget", default=None)


class ClientEgress(Egress, frozen=True, kw_only=True):
    """An Egress as clients' nodes read it, which know those of all namespaces: what a tenant has written for its router
    pods is neither decoded nor kept there.
    """

    metadata: ClientEgressMeta
    spec: ClientEgressSpec = ClientEgressSpec()


CLIENT_EGRESSES: Resource[ClientEgress] = Resource(
    GROUP, VERSION, "egresses", "Egress", namespaced=True, type=ClientEgress
)
