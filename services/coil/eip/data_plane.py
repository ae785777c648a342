"""What a node's nftables sets hold for all policies, kept up to date by what changes.

Place in the flow: the node's agent tells this index what it sees of policies, pods and peers, and carries out what
`take_changes` returns with `coil.nft`; `coil.eip.eip_table` has the rules that look it up.

A *class* is the set of policies that concern a source address. Classes and policies have numbers for as long as
anything is of that class, or of one with that policy. Only sources that this node has anything to do with are in the
sets: those on it, and those that a policy of theirs brings here; ranges of sources are on every node.

Invariant: what the index has at any time follows from what it was told last, in whatever order and steps, and so do the
numbers, but for two names that `WordAllocator` keeps apart.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.classification import PolicyView, classify, cluster_spans, needs_cluster
from coil.eip.eip_set import (
    ARP_EIPS,
    CLOSED,
    HERE,
    NODE_IPS,
    NODES,
    OPEN,
    RANGED,
    SETS,
    SOLICITED,
    UNKNOWN_WORD,
    WAYS,
)
from coil.eip.element_ledger import ElementLedger, WordAllocator
from coil.eip.path_change import ClassPaths, PathChanges, PathLog
from coil.eip.source_index import SourceIndex, SourceNumber, source_family, source_word
from coil.eip.tunnel_plan import Peer
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.interval import Span, span_word, spans_of
from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName

_SOLICITED_NODE = int(IPv6Address("ff02::1:ff00:0"))

__all__ = ["DataPlaneIndex", "PolicyView"]


@dataclass(slots=True)
class _Class:
    """One class in use: the word of its number, and how many sources and ranges are of it."""

    word: str
    users: int = 0


_ClassKey = tuple[Family, frozenset[PolicyRef]]


class DataPlaneIndex:
    """See the module. Setters cost O(what differs), `take_changes` O(elements that differ) but for ranges of sources,
    of which a change costs O(all ranges).
    """

    def __init__(self) -> None:
        self._own: NodeName | None = None
        self._policies: dict[PolicyRef, PolicyView] = {}
        self._sources = SourceIndex()
        self._floating: dict[IPAddress, set[PolicyRef]] = {}
        """Whose address it is; policies may share one."""
        self._own_addresses: frozenset[IPAddress] = frozenset()
        self._marks: dict[NodeName, int] = {}
        self._cluster: dict[Family, list[Span]] = {family: cluster_spans((), family) for family in Family}
        self._classes: dict[_ClassKey, _Class] = {}
        self._classes_of: dict[PolicyRef, set[_ClassKey]] = {}
        self._class_of: dict[SourceNumber, _ClassKey] = {}
        self._range_class: dict[Family, dict[Span, _ClassKey]] = {family: {} for family in Family}
        self._allocator = WordAllocator()
        self._words: dict[PolicyRef, str] = {}
        """Of the policies that are in any class."""
        self._stale_classes: set[_ClassKey] = set()
        """Those whose elements may not say what their policies say now, and those that nothing may be left of."""
        self._stale_policies: set[PolicyRef] = set()
        """The same of policies, as far as they are in classes."""
        self._stale_pods: set[SourceNumber] = set()
        self._stale_ranges = False
        self._guarded: dict[Family, Counter[IPNetwork | None]] = {family: Counter() for family in Family}
        """Destinations of the policies that fail closed, and how many have each; None: all beyond the cluster."""
        self._stale_guard: set[Family] = set()
        self._ledger = ElementLedger(ranged=RANGED)
        self._path_log: PathLog[_ClassKey] = PathLog()
        for family in Family:
            self._write_cluster(family)

    def set_own(self, node: NodeName) -> None:
        """The node whose index this is; nothing is carried `HERE` before."""
        if node == self._own:
            return
        self._own = node
        self._stale_pods |= self._sources.pods()
        self._stale_classes.update(self._classes)
        self._stale_policies.update(self._words)

    def set_policies(self, policies: Iterable[PolicyView]) -> None:
        """These policies, and no others."""
        wanted = {policy.ref: policy for policy in policies}
        for ref in self._policies.keys() - wanted.keys():
            self.remove_policy(ref)
        for policy in wanted.values():
            self.set_policy(policy)

    def set_policy(self, policy: PolicyView) -> None:
        """This policy is new, or as it is now."""
        former = self._policies.get(policy.ref)
        if former == policy:
            return
        self._policies[policy.ref] = policy
        self._spoil(policy.ref)
        self._guard(former, policy)
        self._set_floating(policy.ref, former, policy)
        if former is None or _reach(former, self._own) != _reach(policy, self._own):
            # Which sources it concerns, or which of them matter here, is another question now.
            self._set_ranges(policy.ref, policy.pod_subnets)
            self._stale_pods |= self._sources.of_policy(policy.ref)

    def remove_policy(self, ref: PolicyRef) -> None:
        """This policy is no more. Its sources stay, for a policy of that name that may come again."""
        former = self._policies.pop(ref, None)
        if former is not None:
            self._guard(former, None)
            self._set_floating(ref, former, None)
            self._stale_pods |= self._sources.of_policy(ref)
            self._set_ranges(ref, ())

    def set_sources(self, policy: PolicyRef, sources: Mapping[IPAddress, NodeName]) -> None:
        """The addresses of the pods that the policy selects, all of them, with the nodes of the pods. The policy need
        not be there yet.
        """
        self._stale_pods |= self._sources.set_pods(policy, sources)

    def set_cluster(self, networks: Iterable[IPNetwork]) -> None:
        """The cluster's own addresses: those of pods, nodes and Services, of the tunnel network, and extras. What never
        leaves a link is added to them.
        """
        kept = tuple(networks)
        for family in Family:
            spans = cluster_spans(kept, family)
            if spans == self._cluster[family]:
                continue
            self._cluster[family] = spans
            self._write_cluster(family)
            self._stale_classes.update(
                key for key in self._classes if key[0] is family and needs_cluster(self._views(key[1]))
            )

    def set_peers(self, peers: Sequence[Peer]) -> None:
        """The other nodes that can be reached, all of them."""
        marks = {peer.node: peer.mark for peer in peers}
        changed = {node for node in marks.keys() | self._marks.keys() if marks.get(node) != self._marks.get(node)}
        self._marks = marks
        self._ledger.write("peers", {NODES: {str(peer.mac): peer.mark for peer in peers}, **_mesh_elements(peers)})
        if changed:
            for ref, policy in self._policies.items():
                if policy.node in changed:
                    self._spoil(ref)

    def set_held(self, addresses: Iterable[IPAddress]) -> None:
        """The floating addresses on this node. Answers for them are fenced, so one has to be here before it is on a
        link, and until it is off.
        """
        words: dict[Family, dict[ElementKey, ElementValue]] = {family: {} for family in Family}
        for address in addresses:
            words[Family.of(address)][str(address)] = None
        held = {SETS[family].held: words[family] for family in Family}
        groups: dict[ElementKey, ElementValue] = {solicited_node(str(word)): None for word in words[Family.IPV6]}
        self._ledger.write("held", {**held, ARP_EIPS: words[Family.IPV4], SOLICITED: groups})

    def set_own_addresses(self, addresses: frozenset[IPAddress]) -> None:
        """The node's own. They are no floating ones for it, even if a gateway has them: of what comes to a floating
        address, only what belongs to a connection is let pass.
        """
        before, self._own_addresses = self._own_addresses, addresses
        for address in self._floating.keys() & (before ^ addresses):
            name = SETS[Family.of(address)].floating
            if address in addresses:
                self._ledger.remove(name, str(address))
            else:
                self._ledger.put(name, str(address), None)

    def set_known(self, addresses: Iterable[IPAddress]) -> None:
        """The addresses of this node's pods of which `set_sources` has told which policies select them."""
        words: dict[Family, dict[ElementKey, ElementValue]] = {family: {} for family in Family}
        for address in addresses:
            words[Family.of(address)][str(address)] = None
        self._ledger.write("known", {SETS[family].known: words[family] for family in Family})

    def take_changes(self) -> ElementChanges:
        """What leads from the elements at the last call, none at first, to those of now."""
        self._update()
        return self._ledger.take_changes()

    def take_moves(self) -> PathChanges:
        """Whose ways are other ones than at the last call; sources that had none before are not among them. O(sources)
        if there are any.
        """
        self._update()
        return self._path_log.take(self._class_of, self._range_class, self._cluster)

    def counts(self) -> Mapping[str, int]:
        """Elements as of the last `take_changes` or `elements`, by name of the set. O(sets)."""
        return self._ledger.counts()

    def elements(self) -> Elements:
        """All elements of now. Sets that expire are not among them. Does not count as `take_changes`."""
        self._update()
        return self._ledger.elements()

    def _write_cluster(self, family: Family) -> None:
        words: dict[ElementKey, ElementValue] = {span_word(span, family): None for span in self._cluster[family]}
        self._ledger.write(("cluster", family), {SETS[family].cluster: words})

    def _views(self, refs: Iterable[PolicyRef]) -> list[PolicyView]:
        return [self._policies[ref] for ref in refs if ref in self._policies]

    def _spoil(self, ref: PolicyRef) -> None:
        self._stale_classes.update(self._classes_of.get(ref, ()))
        if ref in self._words:
            self._stale_policies.add(ref)

    def _set_floating(self, ref: PolicyRef, former: PolicyView | None, policy: PolicyView | None) -> None:
        before, now = _floating(former), _floating(policy)
        for address in now - before:
            self._floating.setdefault(address, set()).add(ref)
            if address not in self._own_addresses:
                self._ledger.put(SETS[Family.of(address)].floating, str(address), None)
        for address in before - now:
            owners = self._floating[address]
            owners.discard(ref)
            if not owners:
                del self._floating[address]
                if address not in self._own_addresses:
                    self._ledger.remove(SETS[Family.of(address)].floating, str(address))

    def _guard(self, former: PolicyView | None, policy: PolicyView | None) -> None:
        """What nobody else than its pods may reach unknown is what the policy has now, no more what it had."""
        for family in Family:
            before, now = _guarded(former, family), _guarded(policy, family)
            if before == now:
                continue
            counts = self._guarded[family]
            known = set(counts)
            counts.update(now)
            counts.subtract(before)
            for network in before - now:
                if counts[network] == 0:
                    del counts[network]
            if known != counts.keys():
                self._stale_guard.add(family)

    def _write_guard(self, family: Family) -> None:
        """The class of unknown sources: for them there is no way to any of those destinations."""
        networks = self._guarded[family]
        spans = spans_of((network for network in networks if network is not None), family)
        names = SETS[family]
        beyond: dict[ElementKey, ElementValue] = {UNKNOWN_WORD: UNKNOWN_WORD} if None in networks else {}
        self._ledger.write(
            ("unknown", family),
            {
                names.choices: {(UNKNOWN_WORD, span_word(span, family)): UNKNOWN_WORD for span in spans},
                names.default_choices: beyond,
            },
        )
        self._ledger.write("unknown", {WAYS: {UNKNOWN_WORD: CLOSED}} if any(self._guarded.values()) else {})

    def _set_ranges(self, ref: PolicyRef, subnets: tuple[IPNetwork, ...]) -> None:
        if subnets or self._sources.has_subnets(ref):
            self._stale_pods |= self._sources.set_subnets(ref, subnets)
            self._stale_ranges = True

    def _update(self) -> None:
        """First the sources, which bring classes to be and to an end; then the classes that are left, which do the same
        with policies.
        """
        known_keys: dict[_ClassKey, _ClassKey | None] = {}
        for source in self._stale_pods:
            self._update_pod(source, known_keys)
        self._stale_pods.clear()
        for family in self._stale_guard:
            self._write_guard(family)
        self._stale_guard.clear()
        if self._stale_ranges:
            for family in Family:
                self._update_ranges(family)
            self._stale_ranges = False
        for key in self._stale_classes:
            if self._classes[key].users:
                self._ledger.write(key, self._class_elements(key, self._classes[key].word))
            else:
                self._forget(key)
        self._stale_classes.clear()
        for ref in self._stale_policies:
            if ref in self._classes_of:
                self._ledger.write(ref, self._policy_elements(self._policies[ref], self._words[ref]))
            else:
                self._ledger.write(ref, {})
                self._allocator.release(self._words.pop(ref))
        self._stale_policies.clear()

    def _update_pod(self, source: SourceNumber, known_keys: dict[_ClassKey, _ClassKey | None]) -> None:
        """`known_keys` is this call's: many sources have the same policies."""
        family = source_family(source)
        told = (family, self._sources.policies_of(source))
        if told not in known_keys:
            known_keys[told] = self._key(told[1], family)
        key = known_keys[told]
        if key is not None and not self._matters(source, key):
            key = None
        former = self._class_of.get(source)
        if key == former:
            return
        if former is not None:
            self._path_log.leave(source, former)
            del self._class_of[source]
            self._leave(former)
        if key is None:
            self._ledger.remove(SETS[family].classes, source_word(source))
            return
        self._class_of[source] = key
        self._ledger.put(SETS[family].classes, source_word(source), self._join(key).word)

    def _matters(self, source: SourceNumber, key: _ClassKey) -> bool:
        """Whether a pod is this node's business. What a range says here of others is what it would say without them."""
        return any(_meant_for(self._policies[ref], self._own) for ref in key[1]) or self._sources.is_on(
            source, self._own
        )

    def _key(self, refs: Iterable[PolicyRef], family: Family) -> _ClassKey | None:
        concerning = frozenset(ref for ref in refs if ref in self._policies and self._policies[ref].concerns(family))
        return (family, concerning) if concerning else None

    def _update_ranges(self, family: Family) -> None:
        former, self._range_class[family] = self._range_class[family], {}
        words: dict[ElementKey, ElementValue] = {}
        for span, refs in self._sources.ranges(family):
            key = self._key(refs, family)
            if key is not None:
                self._range_class[family][span] = key
                words[span_word(span, family)] = self._join(key).word
        for key in former.values():
            self._leave(key)
        self._ledger.write(("ranges", family), {SETS[family].subnet_classes: words})

    def _join(self, key: _ClassKey) -> _Class:
        known = self._classes.get(key)
        if known is None:
            known = self._classes[key] = _Class(self._allocator.allocate(_class_name(key)))
            self._stale_classes.add(key)
            for ref in key[1]:
                self._classes_of.setdefault(ref, set()).add(key)
                if ref not in self._words:
                    self._words[ref] = self._allocator.allocate(f"{ref.namespace}/{ref.name}")
                    self._stale_policies.add(ref)
        known.users += 1
        return known

    def _leave(self, key: _ClassKey) -> None:
        self._classes[key].users -= 1
        if not self._classes[key].users:
            self._stale_classes.add(key)

    def _forget(self, key: _ClassKey) -> None:
        self._allocator.release(self._classes.pop(key).word)
        self._ledger.write(key, {})
        self._path_log.forget(key)
        for ref in key[1]:
            self._classes_of[ref].discard(key)
            if not self._classes_of[ref]:
                del self._classes_of[ref]
                self._stale_policies.add(ref)

    def _class_elements(self, key: _ClassKey, word: str) -> dict[SetName, dict[ElementKey, ElementValue]]:
        family, refs = key
        names = SETS[family]
        decided = classify(self._views(refs), family=family, cluster=self._cluster[family])
        choices: dict[ElementKey, ElementValue] = {
            (word, span_word(span, family)): self._words[policy.ref] for span, policy in decided.explicit
        }
        paths = tuple(sorted((span, self._path(policy)) for span, policy in decided.explicit))
        if decided.default is None:
            self._path_log.write(key, ClassPaths(paths))
            return {names.choices: choices}
        self._path_log.write(key, ClassPaths(paths, self._path(decided.default)))
        return {names.choices: choices, names.default_choices: {word: self._words[decided.default.ref]}}

    def _policy_elements(self, policy: PolicyView, word: str) -> dict[SetName, dict[ElementKey, ElementValue]]:
        path = self._path(policy)
        found: dict[SetName, dict[ElementKey, ElementValue]] = {WAYS: {word: path}} if path != OPEN else {}
        if path == HERE and policy.eip is None:
            found[NODE_IPS] = {word: None}
        elif path == HERE:
            addresses = {family: policy.address(family) for family in Family}
            found |= {
                SETS[family].eips: {word: str(address)} for family, address in addresses.items() if address is not None
            }
        return found

    def _path(self, policy: PolicyView) -> int:
        if policy.node is not None:
            if policy.node == self._own:
                return HERE
            if policy.node in self._marks:
                return self._marks[policy.node]
        return OPEN if policy.fail_open else CLOSED


def solicited_node(address: str) -> str:
    """The multicast group where neighbours ask for an IPv6 address (RFC 4291, 2.7.1)."""
    return str(IPv6Address(_SOLICITED_NODE | int(IPv6Address(address)) & 0xFFFFFF))


def _mesh_elements(peers: Iterable[Peer]) -> dict[SetName, dict[ElementKey, ElementValue]]:
    words: dict[SetName, dict[ElementKey, ElementValue]] = {SETS[family].mesh: {} for family in Family}
    for peer in peers:
        for address in peer.addresses:
            words[SETS[Family.of(address)].mesh][str(address)] = None
    return words


def _floating(policy: PolicyView | None) -> set[IPAddress]:
    """The addresses of a policy."""
    found = (policy.address(family) for family in Family) if policy is not None else ()
    return {address for address in found if address is not None}


def _guarded(policy: PolicyView | None, family: Family) -> frozenset[IPNetwork | None]:
    """The destinations of a policy that fails closed; None among them: all beyond the cluster."""
    if policy is None or not policy.closed or not policy.concerns(family):
        return frozenset()
    return frozenset(network for network in policy.destinations if Family.of(network) is family) or frozenset({None})


def _class_name(key: _ClassKey) -> str:
    family, refs = key
    return " ".join([family.name, *sorted(f"{ref.namespace}/{ref.name}" for ref in refs)])


def _reach(policy: PolicyView, own: NodeName | None) -> tuple[object, ...]:
    """What decides which sources a policy concerns, and which of them matter on this node."""
    return policy.pod_subnets, _meant_for(policy, own), *(policy.concerns(family) for family in Family)


def _meant_for(policy: PolicyView, own: NodeName | None) -> bool:
    return policy.node == own or (own is not None and policy.given == own)
