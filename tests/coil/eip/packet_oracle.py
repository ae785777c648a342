"""What the rules of `coil.eip.eip_table` make of a packet, given what is in the sets, and what is to be made of it by
the letter of the rule: for each packet by itself, without classes, sets and maps. Slow and plain.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.classification import PolicyView
from coil.eip.eip_set import (
    CLOSED,
    EVERYWHERE,
    FAMILY_WORDS,
    GUARDED_ALL,
    HERE,
    MOST_POLICIES,
    NEXT,
    NODE_IPS,
    SETS,
    shard_of,
)
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.nft_element import Elements, SetName

NEVER_OUT = ("127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "fe80::/10", "ff00::/8")


@dataclass(frozen=True, slots=True)
class Fate:
    """`mark` None: it goes on as if there were no policy. `source` is what a gateway gives it: an address or `node`."""

    mark: int | None = None
    source: str | None = None


UNTOUCHED = Fate()


def among(address: IPAddress, word: str) -> bool:
    first, dash, last = word.partition("-")
    if dash:
        return int(ip_address(first)) <= int(address) <= int(ip_address(last))
    return address in ip_network(word)


def look_up(elements: Elements, name: SetName, address: IPAddress, number: str | None = None) -> list[object]:
    """All values that the map has for the address, or for the number and the address; there may be one at most."""
    found: list[object] = []
    for key, value in elements.get(name, {}).items():
        if isinstance(key, tuple):
            if key[0] == number and among(address, key[1]):
                found.append(value)
        elif number is None and among(address, key):
            found.append(value)
    assert len(found) <= 1, f"{name} has several for {address}"
    return found


def find_classes(elements: Elements, source: IPAddress, sender: int | None = None) -> list[object]:
    """Of what this node's pods send, or of what comes through the tunnel from the node with the mark `sender`."""
    names = SETS[Family.of(source)]
    if sender is None:
        return look_up(elements, names.classes, source) or look_up(elements, names.subnet_classes, source)
    remote = look_up(elements, names.remote_classes, source, str(sender))
    return remote or look_up(elements, names.subnet_classes, source)


def fate_by_sets(elements: Elements, source: IPAddress, destination: IPAddress, sender: int | None = None) -> Fate:
    """As the rules have it; `sender` as in `find_classes`."""
    names = SETS[Family.of(source)]
    classes = find_classes(elements, source, sender)
    if not classes:
        return UNTOUCHED
    policy = choose_policy(elements, str(classes[0]), destination)
    if policy is None:
        return UNTOUCHED
    mark = elements.get(names.ways, {}).get(policy)
    if mark is None:
        return UNTOUCHED
    assert isinstance(mark, int)
    return Fate(mark, _translation(elements, policy, names.eips) if mark == HERE else None)


def choose_policy(elements: Elements, number: str, destination: IPAddress) -> str | None:
    """The first policy of the class that has the destination."""
    names = SETS[Family.of(destination)]
    in_cluster = bool(look_up(elements, names.cluster, destination))
    for _ in range(MOST_POLICIES):
        policy = number.split(":", maxsplit=1)[0] + ":1"
        ranges = names.cluster_ranges if in_cluster else names.ranges[shard_of(number)]
        found = look_up(elements, ranges, destination, policy)
        if found:
            assert found == [policy]
            return policy
        if not in_cluster and policy in elements.get(EVERYWHERE, {}):
            assert elements[EVERYWHERE][policy] == policy
            return policy
        if number not in elements.get(NEXT, {}):
            return None
        number = str(elements[NEXT][number])
    raise AssertionError("a class has no end")


def is_guarded(elements: Elements, destination: IPAddress) -> bool:
    """Whether unknown sources do not reach it."""
    family = Family.of(destination)
    names = SETS[family]
    if look_up(elements, names.cluster, destination):
        return bool(look_up(elements, names.guarded_cluster, destination))
    everywhere = FAMILY_WORDS[family] in elements.get(GUARDED_ALL, {})
    return everywhere or bool(look_up(elements, names.guarded, destination))


def _translation(elements: Elements, policy: str, eips: SetName) -> str | None:
    if policy in elements.get(eips, {}):
        return str(elements[eips][policy])
    return "node" if policy in elements.get(NODE_IPS, {}) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that a book is told."""

    own: NodeName
    policies: tuple[PolicyView, ...]
    sources: Mapping[PolicyRef, Mapping[IPAddress, NodeName]]
    cluster: tuple[IPNetwork, ...]
    marks: Mapping[NodeName, int]

    def fate(self, source: IPAddress, destination: IPAddress) -> Fate:
        """As it is to be."""
        for policy in sorted(
            self.policies, key=lambda policy: (-policy.priority, policy.ref.namespace, policy.ref.name)
        ):
            if self._concerns(policy, source) and self.is_for(policy, destination):
                return self._verdict(policy, source)
        return UNTOUCHED

    def fate_of_range(self, source: IPAddress, destination: IPAddress) -> Fate:
        """As it is to be if no policy selects the source but by its range."""
        return replace(self, sources={}).fate(source, destination)

    def nodes_of(self, source: IPAddress) -> set[NodeName]:
        """Where a pod with that address is."""
        return {pods[source] for pods in self.sources.values() if source in pods}

    def is_here(self, source: IPAddress) -> bool:
        """Whether the source is of a pod on this node."""
        return self.own in self.nodes_of(source)

    def _concerns(self, policy: PolicyView, source: IPAddress) -> bool:
        selected = source in self.sources.get(policy.ref, {}) or within(source, policy.pod_subnets)
        return selected and (policy.strict or serves(policy, source))

    def is_for(self, policy: PolicyView, destination: IPAddress) -> bool:
        """Whether the policy has the destination."""
        cluster = (*self.cluster, *map(ip_network, NEVER_OUT))
        if not policy.destinations:
            return not within(destination, cluster)
        if not within(destination, cluster):
            return within(destination, policy.destinations)
        named = (network for network in policy.destinations if is_covered(network, cluster))
        return within(destination, named)

    def guards(self, destination: IPAddress) -> bool:
        """Whether a policy that fails closed has the destination."""
        return any(
            policy.closed and (policy.strict or serves(policy, destination)) and self.is_for(policy, destination)
            for policy in self.policies
        )

    def _verdict(self, policy: PolicyView, source: IPAddress) -> Fate:
        if not serves(policy, source):
            return Fate(CLOSED)
        if policy.node == self.own:
            eip = _part(policy, source)
            return Fate(HERE, "node" if eip is None else str(eip))
        if policy.node is not None and policy.node in self.marks:
            return Fate(self.marks[policy.node])
        return UNTOUCHED if policy.fail_open else Fate(CLOSED)


def within(address: IPAddress, networks: Iterable[IPNetwork]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def is_covered(network: IPNetwork, others: Iterable[IPNetwork]) -> bool:
    """Whether all its addresses are in the others; it has few."""
    kept = [other for other in others if other.version == network.version]
    if any(network.subnet_of(other) for other in kept):  # type: ignore[arg-type]
        return True
    inside = [other for other in kept if other.subnet_of(network)]  # type: ignore[arg-type]
    return bool(inside) and network.num_addresses <= _FEW and all(within(address, inside) for address in network)


_FEW = 256


def serves(policy: PolicyView, address: IPAddress) -> bool:
    """Whether the policy has a source address of that family."""
    return policy.eip is None or _part(policy, address) is not None


def _part(policy: PolicyView, source: IPAddress) -> IPAddress | None:
    if policy.eip is None:
        return None
    return policy.eip.ipv4 if source.version == 4 else policy.eip.ipv6
