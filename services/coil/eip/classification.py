"""Which policy a packet is subject to: the policies that concern its source, flattened over destinations.

Place in the flow: `coil.eip.data_plane` collects which policies concern an address, this module says which of them
decides for which destinations, `coil.eip.eip_table` has the tables that look it up.

The rule: of the policies that concern a source, in the order of `precedence`, the first decides that has the
destination; one without destinations has all that are not the cluster's own. Nodes decide alike, as the order does not
depend on the node.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.claim import Eip
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.interval import Span, intersect, spans_of, subtract, unite

UNROUTED: Final[tuple[IPNetwork, ...]] = tuple(
    map(ip_network, ("127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "fe80::/10", "ff00::/8"))
)
"""Never beyond the cluster: loopback, link-local, multicast, broadcast (RFC 6890, RFC 4291)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """A policy as the nodes need it. `destinations`: none means all but the cluster's own. `pod_subnets` are sources
    beside the pods that it selects. `eip` None: the address of the node that carries it; `node` None: nobody can carry
    it now, and its packets are dropped unless `fail_open`; `given` is then the node that is meant to, which keeps the
    sources, so that little changes when its lease lapses and comes again. `closed`: it selects pods, and its gateway
    fails closed; so what may be one of them is held back until it is known whether it is.
    """

    ref: PolicyRef
    priority: int = 0
    destinations: tuple[IPNetwork, ...] = ()
    pod_subnets: tuple[IPNetwork, ...] = ()
    eip: Eip | None = None
    node: NodeName | None = None
    given: NodeName | None = None
    fail_open: bool = False
    closed: bool = True

    @property
    def precedence(self) -> tuple[int, str, str]:
        """Policies with a lower one decide first."""
        return -self.priority, self.ref.namespace, self.ref.name

    def concerns(self, family: Family) -> bool:
        """Whether it is about packets of that family at all."""
        served = self.eip is None or self.address(family) is not None
        return served and (not self.destinations or any(Family.of(network) is family for network in self.destinations))

    def address(self, family: Family) -> IPAddress | None:
        """Its floating address of that family."""
        if self.eip is None:
            return None
        return self.eip.ipv4 if family is Family.IPV4 else self.eip.ipv6


@dataclass(frozen=True, slots=True)
class Classification:
    """What decides for the packets of one source, by destination.

    `explicit` is sorted and disjoint; `default` decides for what is neither in it nor the cluster's own.
    """

    explicit: tuple[tuple[Span, PolicyView], ...] = ()
    default: PolicyView | None = None


def cluster_spans(networks: Iterable[IPNetwork], family: Family) -> list[Span]:
    """The cluster's own addresses, given its networks: what policies without destinations are not about."""
    return unite(spans_of((*networks, *UNROUTED), family))


def classify(policies: Iterable[PolicyView], *, family: Family, cluster: Sequence[Span]) -> Classification:
    """Flatten the policies that concern a source; those that are not about the family do not count.

    `cluster` are the cluster's own addresses, sorted and disjoint. Costs O(policies of the source x their ranges).
    """
    explicit: list[tuple[Span, PolicyView]] = []
    taken: list[Span] = []
    default: PolicyView | None = None
    for policy in sorted(policies, key=lambda policy: policy.precedence):
        if not policy.concerns(family):
            continue
        if not policy.destinations:
            default = default or policy
            continue
        spans = spans_of(policy.destinations, family)
        if default is not None:
            # All beyond the cluster has been decided.
            spans = intersect(spans, cluster)
        explicit += ((span, policy) for span in subtract(spans, taken))
        taken = unite((*taken, *spans))
    explicit.sort(key=lambda entry: entry[0])
    return Classification(explicit=tuple(explicit), default=default)


def needs_cluster(policies: Iterable[PolicyView]) -> bool:
    """Whether their classification depends on the cluster's own addresses."""
    ordered = sorted(policies, key=lambda policy: policy.precedence)
    bare = next((position for position, policy in enumerate(ordered) if not policy.destinations), len(ordered))
    return any(policy.destinations for policy in ordered[bare:])
