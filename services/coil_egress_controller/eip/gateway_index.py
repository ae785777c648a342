"""Which gateway each policy uses, and which nodes each gateway selects, updated with every change.

A policy's gateway follows from its spec, the labels of its namespace and the namespaces that the gateways allow; a
change of any of the three may move policies from one gateway to another, and then both are reconciled. Nodes are
indexed because a cluster has many, and few carry EIPs.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from coil.crd.builtin import Namespace, Node
from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.resource import object_key
from coil.eip.address_range import AddressRanges, RangeError
from coil.eip.claim import GatewayRules, parse_rules
from coil.eip.gateway_choice import NoGateway, choose_gateway
from coil.eip.policy_mirror import BY_SOURCE, sources_of
from coil.kernel.family import Family, IPAddress
from coil.manager.term import Channel
from coil.reconcile.cache import Cache

_BY_NAMESPACE: Final = "namespace"
_BY_GATEWAY: Final = "gateway"

POLICY_INDEXERS: Final[Mapping[str, Callable[[EgressGatewayPolicy], Iterable[str]]]] = {
    _BY_NAMESPACE: lambda policy: [policy.metadata.namespace],
    # "" for a policy that names none.
    _BY_GATEWAY: lambda policy: [policy.spec.egress_gateway_name],
    BY_SOURCE: sources_of,
}
"""What the cache of policies needs."""


class ChoiceIndex:
    """In memory, of one term. The methods `change_…` take a cache's changes and return the gateways that have other
    policies, or policies with another spec, than before. Each policy that has no gateway now, or for another reason
    than before, is sent to `unassigned`, by key. One that is being deleted has none.
    """

    def __init__(
        self,
        *,
        gateways: Cache[EgressGateway],
        policies: Cache[EgressGatewayPolicy],
        namespaces: Cache[Namespace],
        unassigned: Channel[str],
    ) -> None:
        self._gateway_cache = gateways
        self._policy_cache = policies
        self._namespace_cache = namespaces
        self._unassigned = unassigned
        self._choices: dict[str, str | NoGateway] = {}
        self._policies: dict[str, set[str]] = {}

    def policies(self, gateway: str) -> list[str]:
        """The keys of the policies that use the gateway of that name."""
        return sorted(self._policies.get(gateway, ()))

    def choice(self, policy: str) -> str | NoGateway | None:
        """The gateway of the policy of that key, or why it has none; None if there is no such policy (any more)."""
        return self._choices.get(policy)

    def change_policy(self, old: EgressGatewayPolicy | None, new: EgressGatewayPolicy | None) -> Iterable[str]:
        """Changes of a status alone are none."""
        present = new or old
        if present is None or (old is not None and new is not None and _wanted(old) == _wanted(new)):
            return
        key = object_key(present.metadata)
        moved = self._update(key, new)
        choice = self._choices.get(key)
        yield from moved or ([choice] if isinstance(choice, str) else [])

    def change_namespace(self, old: Namespace | None, new: Namespace | None) -> Iterable[str]:
        present = new or old
        if present is None or (old is not None and new is not None and old.metadata.labels == new.metadata.labels):
            return
        for policy in self._policy_cache.by_index(_BY_NAMESPACE, present.metadata.name):
            yield from self._update(object_key(policy.metadata), policy)

    def change_gateway(self, old: EgressGateway | None, new: EgressGateway | None) -> Iterable[str]:
        """Does not return the gateway itself unless its policies change."""
        present = new or old
        if present is None:
            return
        if old is not None and new is not None and _offered_to(old) == _offered_to(new):
            return
        for name in (present.metadata.name, ""):
            for policy in self._policy_cache.by_index(_BY_GATEWAY, name):
                yield from self._update(object_key(policy.metadata), policy)

    def _update(self, key: str, policy: EgressGatewayPolicy | None) -> list[str]:
        """Choose again; returns the gateways that the policy has left and joined, if it moves."""
        before = self._choices.pop(key, None)
        after = self._choose(policy) if policy is not None and not policy.metadata.deleting else None
        if after is not None:
            self._choices[key] = after
        if before == after:
            return []
        if isinstance(before, str):
            self._policies[before].discard(key)
        if isinstance(after, str):
            self._policies.setdefault(after, set()).add(key)
        elif after is not None:
            self._unassigned.send(key)
        return [name for name in (before, after) if isinstance(name, str)]

    def _choose(self, policy: EgressGatewayPolicy) -> str | NoGateway:
        namespace = self._namespace_cache.get(policy.metadata.namespace)
        found = choose_gateway(
            policy.spec,
            namespace_labels=namespace.metadata.labels if namespace is not None else {},
            gateway=self._gateway_cache.get,
            gateways=self._gateway_cache.items(),
        )
        return found if isinstance(found, NoGateway) else found.metadata.name


def _offered_to(gateway: EgressGateway) -> tuple[object, ...]:
    return gateway.spec.allowed_namespaces, gateway.spec.cluster_default


def _wanted(policy: EgressGatewayPolicy) -> tuple[object, ...]:
    # The generation counts changes that mean the same, too: it is to be told that they were seen.
    return policy.metadata.uid, policy.metadata.deleting, policy.metadata.generation, policy.spec


class SelectionIndex:
    """In memory, of one term. The methods `change_…` take a cache's changes and return the gateways that are affected.
    An empty selector selects no node: admission refuses it, so one that is stored is a mistake.
    """

    def __init__(self, *, gateways: Cache[EgressGateway], nodes: Cache[Node]) -> None:
        self._gateways = gateways
        self._nodes = nodes
        self._selected: dict[str, set[str]] = {}

    def nodes(self, gateway: str) -> list[str]:
        """The names of the nodes that exist and that the gateway of that name selects."""
        return sorted(self._selected.get(gateway, ()))

    def change_gateway(self, old: EgressGateway | None, new: EgressGateway | None) -> Iterable[str]:
        """Changes of a status alone are none."""
        if new is None:
            if old is not None:
                self._selected.pop(old.metadata.name, None)
            return
        if old is not None and old.spec == new.spec and old.metadata.deleting == new.metadata.deleting:
            return
        self._selected[new.metadata.name] = {node.metadata.name for node in self._nodes.items() if _selects(new, node)}
        yield new.metadata.name

    def change_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """Changes of a node's labels, or its creation or deletion."""
        present = new or old
        if present is None or (old is not None and new is not None and _relevant(old) == _relevant(new)):
            return
        name = present.metadata.name
        for gateway in self._gateways.items():
            selected = self._selected.setdefault(gateway.metadata.name, set())
            before = name in selected
            after = new is not None and _selects(gateway, new)
            if after:
                selected.add(name)
            else:
                selected.discard(name)
            if before or after:
                yield gateway.metadata.name

    def selects(self, node: str) -> bool:
        """Whether any gateway selects the node of that name."""
        return any(node in selected for selected in self._selected.values())

    def listed_term(self, node: str) -> int | None:
        """The highest term for which a gateway's status lists addresses at the node; None if none does."""
        terms = [
            entry.term
            for gateway in self._gateways.items()
            for entry in gateway.status.node_list
            if entry.name == node and any(eip.ipv4 or eip.ipv6 for eip in entry.eips)
        ]
        return max(terms, default=None)

    def gateways(self, node: str) -> Iterable[str]:
        """The gateways that the node of that name affects: they select it, or their status lists it."""
        for gateway in self._gateways.items():
            name = gateway.metadata.name
            if node in self._selected.get(name, ()) or any(entry.name == node for entry in gateway.status.node_list):
                yield name


class NodeAddressIndex:
    """The addresses of all Nodes, in memory, of one term. A question costs O(log addresses), and what is found."""

    def __init__(self, gateways: Cache[EgressGateway]) -> None:
        self._gateways = gateways
        self._counts: Counter[IPAddress] = Counter()
        self._numbers: dict[Family, list[int]] = {family: [] for family in Family}
        """Sorted."""

    def within(self, rules: GatewayRules) -> list[IPAddress]:
        """Those that lie in the gateway's ranges."""
        return [*self._within(rules.ipv4), *self._within(rules.ipv6)]

    def observe(self, old: Node | None, new: Node | None) -> None:
        """A Node appeared (no `old`), changed, or went (no `new`)."""
        for address in _own_addresses(new):
            self._counts[address] += 1
            if self._counts[address] == 1:
                insort(self._numbers[Family.of(address)], int(address))
        for address in _own_addresses(old):
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]
                numbers = self._numbers[Family.of(address)]
                del numbers[bisect_left(numbers, int(address))]

    def change_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """The gateways in whose ranges an address has come or gone."""
        changed = _own_addresses(old) ^ _own_addresses(new)
        for gateway in self._gateways.items() if changed else ():
            try:
                rules = parse_rules(gateway.spec)
            except RangeError:
                continue
            if any(address in rules.ipv4 or address in rules.ipv6 for address in changed):
                yield gateway.metadata.name

    def _within(self, ranges: AddressRanges) -> Iterable[IPAddress]:
        numbers = self._numbers[ranges.family]
        address = IPv4Address if ranges.family is Family.IPV4 else IPv6Address
        for first, last in ranges.spans if numbers else ():
            for number in numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]:
                yield address(number)


def _own_addresses(node: Node | None) -> frozenset[IPAddress]:
    return frozenset() if node is None else frozenset(node.addresses())


def _selects(gateway: EgressGateway, node: Node) -> bool:
    selector = gateway.spec.node_selector.selector
    return not selector.empty and selector.selects(node.metadata.labels)


def _relevant(node: Node) -> tuple[object, ...]:
    return node.metadata.uid, node.metadata.labels, node.metadata.deleting
