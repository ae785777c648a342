"""Which policy a packet is subject to.

Place in the flow: `coil.eip.data_plane` collects which policies concern an address, this module says which destinations
each of them is for, `coil.eip.eip_table` has the tables that look it up.

The rule: of the policies that concern a source, in the order of `precedence`, the first decides that has the
destination. One without destinations has all that are not the cluster's own; and of a destination that contains
addresses of the cluster these are no part, but one that lies within the cluster is meant as it is written. Nodes decide
alike, as the order does not depend on the node.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coil.crd.cidr import UNROUTED
from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.claim import Eip
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.interval import Span, span_of, spans_of, unite


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """A policy as the nodes need it. `destinations`: none means all but the cluster's own. `pod_subnets` are sources
    beside the pods that it selects. `eip` None: the address of the node that carries it; `node` None: nobody can carry
    it now, and its packets are dropped unless `fail_open`; `given` is then the node that is meant to, which keeps the
    sources, so that little changes when its lease lapses and comes again. `closed`: it selects pods, and its gateway
    fails closed; so what may be one of them is held back until it is known whether it is. `strict`: packets of a family
    that it has no address of are dropped; otherwise it is not about that family.
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
    strict: bool = False

    @property
    def precedence(self) -> tuple[int, str, str]:
        """Policies with a lower one decide first."""
        return -self.priority, self.ref.namespace, self.ref.name

    def concerns(self, family: Family) -> bool:
        """Whether it is about packets of that family at all."""
        about = not self.destinations or any(Family.of(network) is family for network in self.destinations)
        return about and (self.strict or self.serves(family))

    def serves(self, family: Family) -> bool:
        """Whether it has a source address for packets of that family."""
        return self.eip is None or self.address(family) is not None

    def address(self, family: Family) -> IPAddress | None:
        """Its floating address of that family."""
        if self.eip is None:
            return None
        return self.eip.ipv4 if family is Family.IPV4 else self.eip.ipv6


@dataclass(frozen=True, slots=True)
class Destinations:
    """What a policy is for, of one family: ranges `beyond` the cluster, which stop where the cluster begins, ranges
    `within` it, and whether it is for all that is beyond. Ranges are sorted and disjoint.
    """

    beyond: tuple[Span, ...] = ()
    within: tuple[Span, ...] = ()
    everywhere: bool = False

    def has(self, address: int, *, in_cluster: bool) -> bool:
        """Whether the address with that number is among them; `in_cluster`: it is the cluster's own."""
        if in_cluster:
            return is_in(self.within, address)
        return self.everywhere or is_in(self.beyond, address)


def cluster_spans(networks: Iterable[IPNetwork], family: Family) -> list[Span]:
    """The cluster's own addresses, given its networks, and what is never routed: no part of what policies without
    destinations are about.
    """
    return unite(spans_of((*networks, *UNROUTED), family))


def find_destinations(policy: PolicyView, family: Family, cluster: Sequence[Span]) -> Destinations:
    """`cluster` are the cluster's own addresses. Costs O(destinations)."""
    if not policy.destinations:
        return Destinations(everywhere=True)
    beyond, within = split_networks(policy.destinations, family, cluster)
    return Destinations(beyond=tuple(spans_of(beyond, family)), within=tuple(spans_of(within, family)))


def split_networks(
    networks: Iterable[IPNetwork], family: Family, cluster: Sequence[Span]
) -> tuple[list[IPNetwork], list[IPNetwork]]:
    """Those of the family that are not within the cluster, and those that are."""
    beyond: list[IPNetwork] = []
    within: list[IPNetwork] = []
    for network in networks:
        if Family.of(network) is not family:
            continue
        first, last = span_of(network)
        (within if is_in(cluster, first, last) else beyond).append(network)
    return beyond, within


def is_in(spans: Sequence[Span], first: int, last: int | None = None) -> bool:
    """Whether an address, or all from the first to the last, are in one of the spans, which are sorted and disjoint."""
    position = bisect_right(spans, first, key=lambda span: span[0]) - 1
    return position >= 0 and (first if last is None else last) <= spans[position][1]
