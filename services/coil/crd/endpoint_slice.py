"""The EndpointSlices of Services (discovery.k8s.io/v1): who answers for a Service, and on which ports."""

from typing import Final

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource

SERVICE_LABEL: Final = "kubernetes.io/service-name"
"""The name of the Service that a slice belongs to, in its own namespace."""


class EndpointConditions(Struct, frozen=True, kw_only=True):
    """None is unknown: `ready` is then taken for true, `serving` for the value of `ready`, `terminating` for false."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Endpoint(Struct, frozen=True, kw_only=True):
    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()

    @property
    def ready(self) -> bool:
        return self.conditions.ready is not False

    @property
    def serving(self) -> bool:
        """Ready but for its being about to end."""
        return self.ready if self.conditions.serving is None else self.conditions.serving


class EndpointPort(Struct, frozen=True, kw_only=True):
    """`port` is None for "all ports", which no Service has."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(Struct, frozen=True, kw_only=True):
    """`address_type` is IPv4, IPv6 or FQDN. Go writes empty slices as null."""

    metadata: ObjectMeta
    address_type: str = ""
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None

    @property
    def service(self) -> str:
        """The name of its Service; "" without one."""
        return self.metadata.labels.get(SERVICE_LABEL, "")


ENDPOINT_SLICES: Resource[EndpointSlice] = Resource(
    "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", namespaced=True, type=EndpointSlice
)
