"""What the Egresses that a pod names come to: its gateways, and what is wrong with the rest.

    annotations ─► names ─► Egress: destinations, source port ┐
                        └─► Service: addresses                ├─► ClientSpec, problems
    addresses of the pod ─► families                          ┘

Everything here is written by people, at any time and in any order. Whatever is wrong is reported as a problem and does
not affect the other destinations, families and Egresses of the pod. What a problem leaves without a gateway is blocked,
as the pod must not reach it with its own address: the destinations of the Egress as it is or was last seen, or, where
nobody knows them, all that is not private and all that the namespace led into a tunnel before.

Invariants: no two gateways of a client have a destination in common; a gateway has destinations, and an address for
each of their families, which the pod has too. What is blocked has no gateway.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address

from coil.crd.builtin import Namespace, Service
from coil.crd.cidr import parse_cidr
from coil.crd.egress import Egress
from coil.egress.client_pod import EgressRef, parse_egress_annotations
from coil.egress.gateway import ClientSpec, Gateway, Replies, SourcePort, TunnelPolicy
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.route import DEFAULT_NETWORKS


class ProblemReason(Enum):
    """One CamelCase word each: the reason of an Event on the pod."""

    ANNOTATION = "EgressAnnotationInvalid"
    NOT_FOUND = "EgressNotFound"
    NOT_ALLOWED = "EgressNotAllowed"
    DESTINATION = "EgressInvalid"
    NO_SERVICE = "EgressNoService"
    NO_ADDRESS = "EgressNoAddress"
    CONFLICT = "EgressConflict"
    UNUSABLE = "EgressUnusable"
    """Found where the tunnels are planned, from what is known in the pod's namespace only."""


@dataclass(frozen=True, slots=True)
class EgressProblem:
    """`message` is a sentence for whoever looks at the pod; it is the same as long as the problem is. `unserved`: part
    of what the pod asks for has no gateway, so the pod must not start.
    """

    reason: ProblemReason
    message: str
    unserved: bool = True


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What is the same for all clients of a node. `fail_open`: what has no gateway is reached with the pod's own
    address.
    """

    policy: TunnelPolicy = field(default_factory=TunnelPolicy)
    replies: Replies = Replies.BY_ROUTE
    fail_open: bool = False


@dataclass(frozen=True, slots=True)
class Resolution:
    """`references` are what the pod asks for, whether or not it exists; it is a client of those that are `granted`.
    `destinations` is what each is or was for, as far as that is known, to be given to the next resolution of the pod.
    """

    spec: ClientSpec
    references: tuple[EgressRef, ...] = ()
    granted: frozenset[EgressRef] = frozenset()
    problems: tuple[EgressProblem, ...] = ()
    destinations: Mapping[EgressRef, tuple[IPNetwork, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EgressView:
    """What the API server is known to have, by name."""

    egress: Callable[[EgressRef], Egress | None]
    service: Callable[[EgressRef], Service | None]
    namespace: Callable[[str], Namespace | None] = lambda _name: None
    cluster: Callable[[], tuple[IPNetwork, ...]] = tuple
    """The cluster's networks that are not private (`coil.egress.cluster_networks`)."""


def resolve_client(
    annotations: Mapping[str, str],
    addresses: Iterable[IPAddress],
    view: EgressView,
    options: ClientOptions,
    *,
    namespace: str = "",
    known: Mapping[EgressRef, tuple[IPNetwork, ...]] | None = None,
) -> Resolution:
    """The client that a pod of that namespace with these annotations and addresses is to be.

    `known` are the destinations of an earlier resolution. The order of annotations, names, destinations and addresses
    does not matter. A pod that names no Egress gets an empty spec.
    """
    own = tuple(sorted(set(addresses), key=lambda address: (address.version, int(address))))
    names = parse_egress_annotations(annotations)
    draft = _Draft(frozenset(map(Family.of, own)), view, known or {}, namespace)
    draft.problems += [EgressProblem(ProblemReason.ANNOTATION, text) for text in names.problems]
    draft.problems += [EgressProblem(ProblemReason.ANNOTATION, text, unserved=False) for text in names.duplicates]
    draft.unknown = bool(names.problems)
    if names.references and not own:
        draft.problems.append(EgressProblem(ProblemReason.UNUSABLE, "the addresses of the pod are not known"))
    for reference in names.references:
        draft.add(reference)
    spec = ClientSpec(
        addresses=own,
        gateways=tuple(draft.gateways),
        replies=options.replies,
        policy=options.policy,
        cluster=tuple(network for network in view.cluster() if Family.of(network) in draft.families),
        blocked=() if options.fail_open else draft.blocked(),
        block_unclaimed=draft.unknown and not options.fail_open,
        fail_open=options.fail_open,
    )
    return Resolution(spec, names.references, frozenset(draft.granted), tuple(draft.problems), draft.destinations)


class _Draft:
    """A resolution while Egresses are added to it, in their order."""

    def __init__(
        self,
        families: frozenset[Family],
        view: EgressView,
        known: Mapping[EgressRef, tuple[IPNetwork, ...]],
        namespace: str,
    ) -> None:
        self.families = families
        self._view = view
        self._known = known
        self._namespace = namespace
        self.granted: set[EgressRef] = set()
        self._served: dict[IPNetwork, EgressRef] = {}
        self._unserved: set[IPNetwork] = set()
        self.gateways: list[Gateway] = []
        self.problems: list[EgressProblem] = []
        self.destinations: dict[EgressRef, tuple[IPNetwork, ...]] = {}
        self.unknown = False
        """Whether the pod asks for something whose destinations nobody knows."""

    def add(self, reference: EgressRef) -> None:
        """Serve what the Egress can serve; the rest is unserved, and a problem."""
        gateway = self._gateway(reference)
        if gateway is None:
            return
        free: list[IPNetwork] = []
        for destination in gateway.destinations:
            if destination in self._served:
                other = self._served[destination]
                text = f"Egress {reference}: destination {destination} is already served by Egress {other}"
                self.problems.append(EgressProblem(ProblemReason.CONFLICT, text, unserved=False))
            else:
                self._served[destination] = reference
                free.append(destination)
        if free:
            self.gateways.append(_serving(gateway, free))

    def blocked(self) -> tuple[IPNetwork, ...]:
        """What of the pod's families is unserved, sorted."""
        networks = set(self._unserved)
        if self.unknown:
            networks.update(DEFAULT_NETWORKS.values())
        ours = {network for network in networks if Family.of(network) in self.families}
        return tuple(sorted(ours - self._served.keys(), key=_order))

    def _gateway(self, reference: EgressRef) -> Gateway | None:
        """The gateway with all that the pod can use of it."""
        egress = self._view.egress(reference)
        if egress is None:
            self.problems.append(EgressProblem(ProblemReason.NOT_FOUND, f"there is no Egress {reference}"))
            self._lose(reference)
            return None
        destinations = self._destinations(reference, egress)
        if refusal := self._refusal(reference, egress):
            self.problems.append(EgressProblem(ProblemReason.NOT_ALLOWED, refusal))
            self._unserved.update(destinations)
            return None
        self.granted.add(reference)
        service = self._view.service(reference)
        if service is None:
            text = f"Egress {reference} has no Service yet: is coil-egress-controller running?"
            self.problems.append(EgressProblem(ProblemReason.NO_SERVICE, text))
            self._unserved.update(destinations)
            return None
        addresses = _addresses(service)
        # A family that the pod does not have is none of its business.
        missing = {Family.of(destination) for destination in destinations} & self.families - addresses.keys()
        for family in sorted(missing):
            text = f"the Service of Egress {reference} has no {_NAMES[family]} address, which its destinations need"
            self.problems.append(EgressProblem(ProblemReason.NO_ADDRESS, text))
        self._unserved.update(destination for destination in destinations if Family.of(destination) in missing)
        usable = self.families & addresses.keys()
        return Gateway(
            name=str(reference),
            addresses=tuple(addresses[family] for family in sorted(addresses)),
            destinations=tuple(destination for destination in destinations if Family.of(destination) in usable),
            source_port=SourcePort.AUTO if egress.spec.fou_source_port_auto else SourcePort.FIXED,
        )

    def _refusal(self, reference: EgressRef, egress: Egress) -> str:
        """Why the Egress is not for pods of this namespace; "" if it is."""
        if egress.spec.allowed_namespaces is None:
            return ""
        namespace = self._view.namespace(self._namespace)
        if namespace is None:
            return f"Egress {reference} serves some namespaces only, and the labels of {self._namespace} are not known"
        if not egress.spec.allowed_namespaces.selects(namespace.metadata.labels):
            return f"Egress {reference} does not serve pods of namespace {self._namespace} (spec.allowedNamespaces)"
        return ""

    def _destinations(self, reference: EgressRef, egress: Egress) -> list[IPNetwork]:
        """Each once, in an order that does not depend on how they are written down."""
        found: set[IPNetwork] = set()
        is_complete = True
        for text in egress.spec.destinations:
            try:
                found.add(parse_cidr(text))
            except ValueError as error:
                self.problems.append(EgressProblem(ProblemReason.DESTINATION, f"Egress {reference}: {error}"))
                is_complete = False
        destinations = sorted(found, key=_order)
        if is_complete:
            self.destinations[reference] = tuple(destinations)
        else:
            self._lose(reference)
        return destinations

    def _lose(self, reference: EgressRef) -> None:
        """Nobody knows what the Egress is for: what it was for is unserved, or else anything may be."""
        if reference in self._known:
            self.destinations[reference] = self._known[reference]
            self._unserved.update(self._known[reference])
        else:
            self.unknown = True


def _order(network: IPNetwork) -> tuple[int, int, int]:
    return network.version, int(network.network_address), network.prefixlen


_NAMES = {Family.IPV4: "IPv4", Family.IPV6: "IPv6"}


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
