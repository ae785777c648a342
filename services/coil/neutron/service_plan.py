"""From a Service and its EndpointSlices to the load balancers that it is to have. Pure; docs/neutron.md has the table.

A Service has a load balancer for each of its cluster IPs, which is the address of that: one of Octavia listens in one
IP family, and has members of the same. A listener and its pool are those of one port of the Service.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Final

from coil.crd.builtin import Service, ServicePort
from coil.crd.endpoint_slice import Endpoint, EndpointSlice
from coil.kernel.family import IPAddress, IPNetwork
from coil.neutron.provider import Provider

HEADLESS: Final = "None"


@dataclass(frozen=True, slots=True, order=True)
class MemberPlan:
    """Where connections go: an address as text, in its shortest form, and a port."""

    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerPlan:
    """One port. `affinity` keeps a client with one member. `admitted` is empty where everybody is."""

    protocol: str
    port: int
    affinity: bool = False
    admitted: tuple[str, ...] = ()
    members: frozenset[MemberPlan] = frozenset()

    @property
    def key(self) -> tuple[str, int]:
        """What no two listeners of a load balancer have in common."""
        return self.protocol, self.port

    @property
    def name(self) -> str:
        """What the listener and its pool are called."""
        return f"{self.protocol.lower()}-{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerPlan:
    """One load balancer, at one address."""

    vip: IPAddress
    listeners: tuple[ListenerPlan, ...]


@dataclass(frozen=True, slots=True)
class Remark:
    """What a Service asks for and does not get, for an Event. `reason` is in camel case."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """What a Service is to have. `floating` says whether it is reachable from outside, by a floating IP; `wanted` is
    the one that it asks for, "" for any.
    """

    balancers: tuple[BalancerPlan, ...] = ()
    floating: bool = False
    wanted: str = ""
    remarks: tuple[Remark, ...] = ()


NOTHING: Final = ServicePlan()


def wants_balancer(service: Service) -> bool:
    """Whether it has a cluster IP. A headless one has none, and an ExternalName is no more than a name in the DNS."""
    return service.spec.type != "ExternalName" and bool(_vips(service))


def is_status_ours(service: Service, balancer_class: str) -> bool:
    """Whether its status is ours to write: it is another's where a load balancer of another class was asked for."""
    return service.spec.type != "LoadBalancer" or service.spec.load_balancer_class in ("", balancer_class)


def plan_service(
    service: Service,
    slices: Iterable[EndpointSlice],
    provider: Provider,
    *,
    balancer_class: str,
    inside: Sequence[IPNetwork],
) -> ServicePlan:
    """What the Service is to have from that provider.

    `balancer_class` is the `loadBalancerClass` that is ours; a Service without one is, too. `inside` are the networks
    whose clients are always admitted, for `loadBalancerSourceRanges` are about the others.
    """
    if not wants_balancer(service):
        return NOTHING
    remarks: list[Remark] = []
    floating = _floating(service, provider, balancer_class, remarks)
    admitted = _admitted(service, inside) if floating else ()
    affinity = service.spec.session_affinity == "ClientIP"
    if affinity and not provider.affinity:
        remarks.append(Remark("NoSessionAffinity", f"the provider {provider.name!r} has no session affinity"))
        affinity = False
    ports = [port for port in service.spec.ports if port.protocol in provider.protocols]
    for port in service.spec.ports:
        if port.protocol not in provider.protocols:
            remarks.append(
                Remark(
                    "ProtocolNotSupported", f"the provider {provider.name!r} has no {port.protocol}: port {port.port}"
                )
            )
    _remark_policies(service, remarks)
    found = list(slices)
    balancers = []
    for vip in _vips(service):
        listeners = [
            ListenerPlan(
                protocol=port.protocol,
                port=port.port,
                affinity=affinity,
                admitted=_of_family(admitted, vip.version),
                members=_members(port, found, vip.version),
            )
            for port in ports
        ]
        balancers.append(BalancerPlan(vip=vip, listeners=tuple(sorted(listeners, key=lambda each: each.key))))
    wanted = service.spec.load_balancer_ip if floating else ""
    return ServicePlan(balancers=tuple(balancers), floating=floating, wanted=wanted, remarks=tuple(remarks))


def _floating(service: Service, provider: Provider, balancer_class: str, remarks: list[Remark]) -> bool:
    """Whether it gets a floating IP. One that cannot keep out whom it should gets none: fail closed."""
    spec = service.spec
    if spec.type != "LoadBalancer" or spec.load_balancer_class not in ("", balancer_class):
        return False
    if spec.load_balancer_source_ranges and not provider.source_ranges:
        remarks.append(
            Remark(
                "NoSourceRanges",
                f"it gets no floating IP: the provider {provider.name!r} admits clients whatever their address, and "
                "loadBalancerSourceRanges is set",
            )
        )
        return False
    try:
        for text in spec.load_balancer_source_ranges:
            ip_network(text.strip(), strict=False)
    except ValueError as error:
        remarks.append(Remark("InvalidSourceRanges", f"it gets no floating IP: loadBalancerSourceRanges: {error}"))
        return False
    if all(vip.version == 6 for vip in _vips(service)):
        remarks.append(Remark("NoFloatingIP", "it has no IPv4 address, and Neutron has floating IPs for no other"))
        return False
    return True


def _remark_policies(service: Service, remarks: list[Remark]) -> None:
    spec = service.spec
    if spec.type == "NodePort":
        remarks.append(
            Remark("NodePortIgnored", "it answers on its cluster IP only: pods are not reached through their nodes")
        )
    if spec.external_ips:
        remarks.append(
            Remark(
                "ExternalIPsIgnored", "externalIPs are not given: whoever may write a Service could take any address"
            )
        )
    if spec.external_traffic_policy == "Local" or spec.internal_traffic_policy == "Local":
        remarks.append(
            Remark("PolicyLocalIgnored", "the load balancer is on no node: the traffic policy Local counts as Cluster")
        )


def _admitted(service: Service, inside: Sequence[IPNetwork]) -> tuple[str, ...]:
    ranges = [ip_network(text.strip(), strict=False) for text in service.spec.load_balancer_source_ranges]
    return tuple(sorted({str(network) for network in (*ranges, *inside)})) if ranges else ()


def _of_family(networks: Iterable[str], version: int) -> tuple[str, ...]:
    return tuple(network for network in networks if ip_network(network).version == version)


def _vips(service: Service) -> list[IPAddress]:
    texts = service.spec.cluster_ips or (service.spec.cluster_ip,)
    return [ip_address(text) for text in texts if text and text != HEADLESS]


def _members(port: ServicePort, slices: Sequence[EndpointSlice], version: int) -> frozenset[MemberPlan]:
    """Those that are ready; where none is, those that still serve while they end, as kube-proxy has it (KEP-1669)."""
    kind = f"IPv{version}"
    endpoints: list[tuple[Endpoint, int]] = []
    for each in slices:
        if each.address_type != kind or each.metadata.deleting:
            continue
        for found in each.ports or ():
            if (found.name or "") == port.name and (found.protocol or "TCP") == port.protocol and found.port:
                endpoints.extend((endpoint, found.port) for endpoint in each.endpoints or ())
    chosen = [pair for pair in endpoints if pair[0].ready] or [pair for pair in endpoints if pair[0].serving]
    # Any of an endpoint's addresses will do (discovery/v1): the first.
    return frozenset(
        MemberPlan(str(ip_address(endpoint.addresses[0])), number) for endpoint, number in chosen if endpoint.addresses
    )
