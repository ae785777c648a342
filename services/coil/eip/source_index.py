"""Which policies are told to concern which source addresses: pods by their addresses, and ranges.

There are many, so an address is a plain number here, a `SourceNumber`: hashing an address object costs ten times that.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Set
from ipaddress import IPv6Address
from typing import Final, TypeAlias

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.interval import Span, spans_of, subtract

SourceNumber: TypeAlias = int
"""An IPv4 address as its number, an IPv6 one as its number beyond `_IPV6`."""

_IPV6: Final = 1 << 128
_Range = tuple[Span, frozenset[PolicyRef]]


def source_family(source: SourceNumber) -> Family:
    return Family.IPV4 if source < _IPV6 else Family.IPV6


def source_word(source: SourceNumber) -> str:
    """The address as `coil.kernel.nft_element` has it."""
    if source < _IPV6:
        return "{}.{}.{}.{}".format(*source.to_bytes(4))  # a third of the time that an address object takes
    return str(IPv6Address(source - _IPV6))


def source_number(address: IPAddress) -> SourceNumber:
    return int(address) if address.version == 4 else int(address) + _IPV6


class SourceIndex:
    """Pods cost O(those that differ). A change of ranges costs O(all ranges), when somebody next asks."""

    def __init__(self) -> None:
        self._pods: dict[PolicyRef, dict[SourceNumber, NodeName]] = {}
        self._policies: dict[SourceNumber, dict[PolicyRef, NodeName]] = {}
        self._subnets: dict[PolicyRef, tuple[IPNetwork, ...]] = {}
        self._ranges: dict[Family, list[_Range]] | None = None
        self._sorted: list[SourceNumber] | None = None
        """The addresses of all pods, None if they have to be sorted first."""

    def set_pods(self, policy: PolicyRef, pods: Mapping[IPAddress, NodeName]) -> set[SourceNumber]:
        """All pods that the policy selects; returns those of which something has changed."""
        former = self._pods.pop(policy, {})
        wanted = {source_number(address): node for address, node in pods.items()}
        changed = former.keys() ^ wanted.keys()
        if former:
            changed |= {source for source, node in wanted.items() if former.get(source, node) != node}
        for source in changed:
            if source in wanted:
                self._policies.setdefault(source, {})[policy] = wanted[source]
            else:
                del self._policies[source][policy]
                if not self._policies[source]:
                    del self._policies[source]
        if wanted:
            self._pods[policy] = wanted
        if changed:
            self._sorted = None
        return changed

    def set_subnets(self, policy: PolicyRef, subnets: tuple[IPNetwork, ...]) -> set[SourceNumber]:
        """All ranges that the policy names; returns the pods for which that makes a difference."""
        former = self._subnets.pop(policy, ())
        if subnets:
            self._subnets[policy] = subnets
        if former == subnets:
            return set()
        self._ranges = None
        changed: set[SourceNumber] = set()
        for family in Family:
            old, new = spans_of(former, family), spans_of(subnets, family)
            for span in (*subtract(old, new), *subtract(new, old)):
                changed |= self._pods_in(span, family)
        return changed

    def has_subnets(self, policy: PolicyRef) -> bool:
        """Whether the policy names ranges."""
        return policy in self._subnets

    def pods(self) -> set[SourceNumber]:
        """All of them."""
        return set(self._policies)

    def of_policy(self, policy: PolicyRef) -> set[SourceNumber]:
        """All pods that the policy concerns, selected or in a range of its."""
        found = set(self._pods.get(policy, ()))
        subnets = self._subnets.get(policy, ())
        for family in Family:
            for span in spans_of(subnets, family):
                found |= self._pods_in(span, family)
        return found

    def nodes_of(self, source: SourceNumber) -> Set[NodeName]:
        """Where the pod is, by what its policies were told: more than one node while they do not agree."""
        return frozenset(self._policies.get(source, {}).values())

    def policies_of(self, source: SourceNumber) -> frozenset[PolicyRef]:
        """The policies that concern a pod; none if it is no pod."""
        selecting = self._policies.get(source)
        if selecting is None:
            return frozenset()
        ranges = self._all_ranges()[source_family(source)]
        if not ranges:
            return frozenset(selecting)
        number = source & (_IPV6 - 1)
        position = bisect_right(ranges, number, key=lambda entry: entry[0][0]) - 1
        if position >= 0 and number <= ranges[position][0][1]:  # the last range that begins before it
            return ranges[position][1].union(selecting)
        return frozenset(selecting)

    def ranges(self, family: Family) -> Iterable[_Range]:
        """The ranges, cut where policies begin and end: sorted and disjoint."""
        return self._all_ranges()[family]

    def _all_ranges(self) -> dict[Family, list[_Range]]:
        if self._ranges is None:
            self._ranges = {family: list(self._cut(family)) for family in Family}
        return self._ranges

    def _cut(self, family: Family) -> Iterator[_Range]:
        bounds: dict[int, tuple[list[PolicyRef], list[PolicyRef]]] = {}
        for policy, subnets in self._subnets.items():
            for first, last in spans_of(subnets, family):
                bounds.setdefault(first, ([], []))[0].append(policy)
                bounds.setdefault(last + 1, ([], []))[1].append(policy)
        current: set[PolicyRef] = set()
        start = 0
        for bound in sorted(bounds):
            if current:
                yield (start, bound - 1), frozenset(current)
            begins, ends = bounds[bound]
            current = (current - set(ends)) | set(begins)
            start = bound

    def _pods_in(self, span: Span, family: Family) -> set[SourceNumber]:
        if self._sorted is None:
            self._sorted = sorted(self._policies)
        base = 0 if family is Family.IPV4 else _IPV6
        first, last = bisect_left(self._sorted, base + span[0]), bisect_right(self._sorted, base + span[1])
        return set(self._sorted[first:last])
