"""What the rules of `coil.eip.eip_table` make of a packet, given what is in the sets, and what is to be made of it by
the letter of the rule: for each packet by itself, without classes, ranges and maps. Slow and plain.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.classification import PolicyView
from coil.eip.eip_set import CLOSED, HERE, NODE_IPS, SETS, WAYS
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
    """All values that the map has for the address, or for the class and the address; there may be one at most."""
    found: list[object] = []
    for key, value in elements.get(name, {}).items():
        if isinstance(key, tuple):
            if key[0] == number and among(address, key[1]):
                found.append(value)
        elif number is None and among(address, key):
            found.append(value)
    assert len(found) <= 1, f"{name} has several for {address}"
    return found


def fate_by_sets(elements: Elements, source: IPAddress, destination: IPAddress) -> Fate:
    """As the rules have it."""
    names = SETS[Family.of(source)]
    classes = look_up(elements, names.classes, source) or look_up(elements, names.subnet_classes, source)
    if not classes:
        return UNTOUCHED
    number = str(classes[0])
    choices = look_up(elements, names.choices, destination, number)
    if not choices:
        default_choices = elements.get(names.default_choices, {})
        if look_up(elements, names.cluster, destination) or number not in default_choices:
            return UNTOUCHED
        choices = [default_choices[number]]
    policy = str(choices[0])
    mark = elements.get(WAYS, {}).get(policy)
    if mark is None:
        return UNTOUCHED
    assert isinstance(mark, int)
    return Fate(mark, _translation(elements, policy, names.eips) if mark == HERE else None)


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
            if self._concerns(policy, source) and self._is_for(policy, destination):
                return self._verdict(policy, source)
        return UNTOUCHED

    def is_here(self, source: IPAddress) -> bool:
        """Whether the source is of a pod on this node."""
        return any(pods.get(source) == self.own for pods in self.sources.values())

    def _concerns(self, policy: PolicyView, source: IPAddress) -> bool:
        selected = source in self.sources.get(policy.ref, {}) or within(source, policy.pod_subnets)
        return selected and (policy.eip is None or _part(policy, source) is not None)

    def _is_for(self, policy: PolicyView, destination: IPAddress) -> bool:
        if policy.destinations:
            return within(destination, policy.destinations)
        return not within(destination, (*self.cluster, *map(ip_network, NEVER_OUT)))

    def _verdict(self, policy: PolicyView, source: IPAddress) -> Fate:
        if policy.node == self.own:
            eip = _part(policy, source)
            return Fate(HERE, "node" if eip is None else str(eip))
        if policy.node is not None and policy.node in self.marks:
            return Fate(self.marks[policy.node])
        return UNTOUCHED if policy.fail_open else Fate(CLOSED)


def within(address: IPAddress, networks: Iterable[IPNetwork]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _part(policy: PolicyView, source: IPAddress) -> IPAddress | None:
    if policy.eip is None:
        return None
    return policy.eip.ipv4 if source.version == 4 else policy.eip.ipv6
