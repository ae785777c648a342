"""What the Egresses that a pod names come to: its gateways, and what is wrong with the rest.

    annotations ─► names ─► Egress: destinations, source port ┐
                        └─► Service: addresses                ├─► ClientSpec, problems
    addresses of the pod ─► families                          ┘

Everything here is written by people, at any time and in any order. So whatever is wrong is a problem that is told, and
takes nothing with it but itself: the other destinations, families and Egresses of the pod work. Invariants: no two
gateways of a client have a destination in common; a gateway has destinations, and an address for each of their
families, which the pod has too.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address

from coil.crd.builtin import Service
from coil.crd.cidr import parse_cidr
from coil.crd.egress import Egress
from coil.egress.annotation import EgressRef, parse_egress_annotations
from coil.egress.gateway import ClientSpec, Gateway, Replies
from coil.egress.policy import SourcePort, TunnelPolicy
from coil.kernel.family import Family, IPAddress, IPNetwork


class ProblemReason(Enum):
    """One CamelCase word each: the reason of an Event on the pod."""

    ANNOTATION = "EgressAnnotationInvalid"
    NOT_FOUND = "EgressNotFound"
    DESTINATION = "EgressInvalid"
    NO_SERVICE = "EgressNoService"
    NO_ADDRESS = "EgressNoAddress"
    CONFLICT = "EgressConflict"
    UNUSABLE = "EgressUnusable"
    """Found where the tunnels are planned, from what is known in the pod's namespace only."""


@dataclass(frozen=True, slots=True)
class EgressProblem:
    """`message` is a sentence for whoever looks at the pod; it is the same as long as the problem is."""

    reason: ProblemReason
    message: str


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What is the same for all clients of a node."""

    policy: TunnelPolicy = field(default_factory=TunnelPolicy)
    replies: Replies = Replies.BY_ROUTE


@dataclass(frozen=True, slots=True)
class Resolution:
    """`references` are what the pod asks for, whether or not it exists."""

    spec: ClientSpec
    references: tuple[EgressRef, ...] = ()
    problems: tuple[EgressProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class EgressView:
    """What the API server is known to have, by name."""

    egress: Callable[[EgressRef], Egress | None]
    service: Callable[[EgressRef], Service | None]


def resolve_client(
    annotations: Mapping[str, str], addresses: Iterable[IPAddress], view: EgressView, options: ClientOptions
) -> Resolution:
    """The client that a pod with these annotations and addresses is to be.

    The order of annotations, names, destinations and addresses does not matter. A pod that names no Egress gets a spec
    without gateways.
    """
    own = tuple(sorted(set(addresses), key=lambda address: (address.version, int(address))))
    names = parse_egress_annotations(annotations)
    problems = [EgressProblem(ProblemReason.ANNOTATION, text) for text in names.problems]
    gateways: list[Gateway] = []
    taken: dict[IPNetwork, EgressRef] = {}
    for reference in names.references:
        gateway = _gateway(reference, frozenset(map(Family.of, own)), view, problems)
        if gateway is None:
            continue
        free: list[IPNetwork] = []
        for destination in gateway.destinations:
            if destination in taken:
                text = f"Egress {reference}: its destination {destination} is that of {taken[destination]}, too"
                problems.append(EgressProblem(ProblemReason.CONFLICT, f"{text}, which has it"))
            else:
                taken[destination] = reference
                free.append(destination)
        if free:
            gateways.append(_serving(gateway, free))
    spec = ClientSpec(addresses=own, gateways=tuple(gateways), replies=options.replies, policy=options.policy)
    return Resolution(spec, names.references, tuple(problems))


def _gateway(
    reference: EgressRef, families: frozenset[Family], view: EgressView, problems: list[EgressProblem]
) -> Gateway | None:
    """The gateway with all that the pod can use of it; what is wrong goes to `problems`."""
    egress = view.egress(reference)
    if egress is None:
        problems.append(EgressProblem(ProblemReason.NOT_FOUND, f"there is no Egress {reference}"))
        return None
    destinations = _destinations(reference, egress, problems)
    service = view.service(reference)
    if service is None:
        text = f"Egress {reference} has no Service yet: is coil-egress-controller running?"
        problems.append(EgressProblem(ProblemReason.NO_SERVICE, text))
        return None
    addresses = _addresses(service)
    # A family that the pod does not have is none of its business.
    for family in sorted({Family.of(destination) for destination in destinations} & families - addresses.keys()):
        text = f"the Service of Egress {reference} has no {_NAMES[family]} address, which its destinations need"
        problems.append(EgressProblem(ProblemReason.NO_ADDRESS, text))
    usable = [destination for destination in destinations if Family.of(destination) in families & addresses.keys()]
    return Gateway(
        name=str(reference),
        addresses=tuple(addresses[family] for family in sorted(addresses)),
        destinations=tuple(usable),
        source_port=SourcePort.AUTO if egress.spec.fou_source_port_auto else SourcePort.FIXED,
    )


_NAMES = {Family.IPV4: "IPv4", Family.IPV6: "IPv6"}


def _destinations(reference: EgressRef, egress: Egress, problems: list[EgressProblem]) -> list[IPNetwork]:
    """Each once, in an order that does not depend on how they are written down."""
    found: set[IPNetwork] = set()
    for text in egress.spec.destinations:
        try:
            found.add(parse_cidr(text))
        except ValueError as error:
            problems.append(EgressProblem(ProblemReason.DESTINATION, f"Egress {reference}: {error}"))
    return sorted(found, key=lambda network: (network.version, int(network.network_address), network.prefixlen))


def _addresses(service: Service) -> dict[Family, IPAddress]:
    """One per family, the first that is an address: a Service may be headless ("None"), or of a name ("")."""
    found: dict[Family, IPAddress] = {}
    # An API server without dual stack tells the one address alone.
    for text in service.spec.cluster_ips or (service.spec.cluster_ip,):
        try:
            address = ip_address(text)
        except ValueError:
            continue
        found.setdefault(Family.of(address), address)
    return found


def _serving(gateway: Gateway, destinations: list[IPNetwork]) -> Gateway:
    """With these destinations, and the addresses that they need."""
    families = {Family.of(destination) for destination in destinations}
    return Gateway(
        name=gateway.name,
        addresses=tuple(address for address in gateway.addresses if Family.of(address) in families),
        destinations=tuple(destinations),
        source_port=gateway.source_port,
    )
