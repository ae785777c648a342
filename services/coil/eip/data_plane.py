"""What a node's nftables sets hold for all policies, kept up to date by what changes.

Place in the flow: the node's agent tells this index what it sees of policies, pods and peers, and carries out what
`take_changes` returns with `coil.nft`; `coil.eip.eip_table` has the rules that look it up.

A *class* is the list of policies that concern a source address (`coil.eip.policy_class`). Only sources that this node
has anything to do with are in the sets: those on it, and those that a policy of theirs brings here; ranges of sources
are on every node.

Invariant: what the index has at any time follows from what it was told last, in whatever order and steps, and so do the
numbers, but for those of `coil.eip.policy_class` that do not, and the marks of decisions.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from ipaddress import IPv6Address

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.change_steps import STEP, delete_effort
from coil.eip.classification import Destinations, PolicyView, cluster_spans, find_destinations, split_networks
from coil.eip.decision_cache import DecisionCache
from coil.eip.eip_set import (
    ARP_EIPS,
    CLOSED,
    CLOSED_WORD,
    EVERYWHERE,
    FAMILY_WORDS,
    GUARDED_ALL,
    HERE,
    NODE_IPS,
    NODES,
    OPEN,
    PEERS,
    SETS,
    SOLICITED,
    shard_of,
)
from coil.eip.element_ledger import ElementLedger
from coil.eip.network_union import NetworkUnion
from coil.eip.path_change import ClassPaths, PathChanges, PathLog, PolicyPath
from coil.eip.policy_class import CLOSED_REF, PolicyClasses, PolicyList, limit_policies
from coil.eip.source_index import SourceIndex, SourceNumber, source_family, source_number, source_word
from coil.eip.tunnel_plan import Peer
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.interval import Span, span_word, touching
from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName

_SOLICITED_NODE = int(IPv6Address("ff02::1:ff00:0"))

__all__ = ["DataPlaneIndex", "PolicyView"]


_ClassKey = tuple[Family, PolicyList]
_Words = dict[SetName, dict[ElementKey, ElementValue]]


class DataPlaneIndex:
    """See the module. Setters cost O(what differs), `take_changes` O(elements that differ) but for ranges of sources,
    of which a change costs O(all ranges), the cluster's own networks, of which one costs O(all destinations), and
    peers, of which one costs O(sources that matter here).
    `clock` gives monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._own: NodeName | None = None
        self._policies: dict[PolicyRef, PolicyView] = {}
        self._sources = SourceIndex()
        self._floating: dict[IPAddress, set[PolicyRef]] = {}
        """Whose address it is; policies may share one."""
        self._node_addresses: frozenset[IPAddress] = frozenset()
        self._marks: dict[NodeName, int] = {}
        self._cluster: dict[Family, list[Span]] = {family: cluster_spans((), family) for family in Family}
        self._ledger = ElementLedger()
        self._classes = PolicyClasses(self._ledger)
        self._users: dict[_ClassKey, int] = {}
        """How many sources and ranges are of each class."""
        self._classes_of: dict[PolicyRef, set[_ClassKey]] = {}
        self._class_of: dict[SourceNumber, _ClassKey] = {}
        self._senders: dict[SourceNumber, Set[int]] = {}
        """By the marks of which nodes a source has its class."""
        self._range_class: dict[Family, dict[Span, _ClassKey]] = {family: {} for family in Family}
        self._numbers: dict[PolicyRef, str] = {}
        """The words of policies that elements were written for."""
        self._destinations: dict[PolicyRef, dict[Family, Destinations]] = {}
        """What those elements are about."""
        self._written: dict[PolicyRef, int] = {}
        """When they were written, counted in `_writes`."""
        self._writes = 0
        self._stale_policies: set[PolicyRef] = set()
        """Those whose elements may not say what they are now, as far as they are in classes."""
        self._stale_destinations: set[PolicyRef] = set()
        self._stale_paths: set[_ClassKey] = set()
        self._stale_pods: set[SourceNumber] = set()
        self._stale_ranges = False
        self._guards = {family: _Guard(family, self._ledger) for family in Family}
        self._decisions = DecisionCache(self._ledger, clock=clock)
        self._path_log: PathLog[_ClassKey] = PathLog()
        closed: _Words = {SETS[family].ways: {CLOSED_WORD: CLOSED} for family in Family}
        closed[EVERYWHERE] = {CLOSED_WORD: CLOSED_WORD}
        self._ledger.write("closed", closed)
        for family in Family:
            self._write_cluster(family)

    def set_own(self, node: NodeName) -> None:
        """The node whose index this is; nothing is carried `HERE` before."""
        if node == self._own:
            return
        self._own = node
        self._stale_pods |= self._sources.pods()
        self._stale_policies.update(self._policies)

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
        self._stale_policies.add(policy.ref)
        if former is None or _aim(former) != _aim(policy):
            self._stale_destinations.add(policy.ref)
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
            self._stale_policies.add(ref)
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
            self._guards[family].move(spans)
            self._stale_policies.update(self._policies)
            self._stale_destinations.update(self._policies)

    def set_peers(self, peers: Sequence[Peer]) -> None:
        """The other nodes that can be reached, all of them."""
        marks = {peer.node: peer.mark for peer in peers}
        changed = {node for node in marks.keys() | self._marks.keys() if marks.get(node) != self._marks.get(node)}
        self._marks = marks
        self._ledger.write("peers", _mesh_elements(peers))
        if changed:
            for ref, policy in self._policies.items():
                if policy.node in changed:
                    self._stale_policies.add(ref)
            of_changed = (source for source in self._class_of if not changed.isdisjoint(self._sources.nodes_of(source)))
            self._stale_pods.update(of_changed)

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

    def set_node_addresses(self, addresses: frozenset[IPAddress]) -> None:
        """Those of all Nodes, this one among them. They are no floating ones, even if a gateway has them: of what comes
        to a floating address, only what belongs to a connection is let pass.
        """
        before, self._node_addresses = self._node_addresses, addresses
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

    def find_crowded(self, addresses: Iterable[IPAddress]) -> set[IPAddress]:
        """Those of the addresses that more policies concern than apply to one source, as of the last `take_changes`.
        O(1) while there is no such source, and else O(addresses × ranges of such sources).
        """
        found: set[IPAddress] = set()
        if CLOSED_REF not in self._classes_of:
            return found
        ranges = {family: self._crowded_ranges(family) for family in Family}
        for address in addresses:
            key = self._class_of.get(source_number(address))
            if key is not None:
                crowded = key[1][-1] == CLOSED_REF
            else:
                crowded = any(first <= int(address) <= last for first, last in ranges[Family.of(address)])
            if crowded:
                found.add(address)
        return found

    def _crowded_ranges(self, family: Family) -> list[Span]:
        return [span for span, (_, refs) in self._range_class[family].items() if refs[-1] == CLOSED_REF]

    def take_changes(self) -> ElementChanges:
        """What leads from the elements at the last call, none at first, to those of now."""
        self._update()
        return self._ledger.take_changes()

    def settle(self) -> None:
        """What `take_changes` has returned is in the kernel."""
        self._decisions.settle()

    def distrust(self) -> None:
        """Somebody else has changed elements: no connection's decision counts that was taken before."""
        self._decisions.spoil_all()

    def wait(self) -> float | None:
        """In how many seconds after the last change, if there is no other, `renew` has changes; None: never."""
        return self._decisions.wait()

    def renew(self) -> ElementChanges:
        """As `take_changes`, with what lets connections bear decisions again."""
        self._decisions.renew()
        return self.take_changes()

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

    def _set_floating(self, ref: PolicyRef, former: PolicyView | None, policy: PolicyView | None) -> None:
        before, now = _floating(former), _floating(policy)
        for address in now - before:
            self._floating.setdefault(address, set()).add(ref)
            if address not in self._node_addresses:
                self._ledger.put(SETS[Family.of(address)].floating, str(address), None)
        for address in before - now:
            owners = self._floating[address]
            owners.discard(ref)
            if not owners:
                del self._floating[address]
                if address not in self._node_addresses:
                    self._ledger.remove(SETS[Family.of(address)].floating, str(address))

    def _guard(self, former: PolicyView | None, policy: PolicyView | None) -> None:
        """What nobody else than its pods may reach unknown is what the policy has now, no more what it had."""
        for family, guard in self._guards.items():
            before, now = _guarded(former, family), _guarded(policy, family)
            for network in now - before:
                guard.add(network, self._cluster[family])
            for network in before - now:
                guard.remove(network, self._cluster[family])

    def _set_ranges(self, ref: PolicyRef, subnets: tuple[IPNetwork, ...]) -> None:
        if subnets or self._sources.has_subnets(ref):
            self._stale_pods |= self._sources.set_subnets(ref, subnets)
            self._stale_ranges = True

    def _update(self) -> None:
        """First the sources, which bring classes to be and to an end, and so numbers of policies; then the policies."""
        self._update_destinations()
        self._update_pods()
        if self._stale_ranges:
            for family in Family:
                self._update_ranges(family)
            self._stale_ranges = False
        # What is oldest goes first, as the kernel finds it first.
        for ref in sorted(self._stale_policies | self._classes.touched, key=lambda ref: self._written.get(ref, 0)):
            self._update_policy(ref)
        for key in self._stale_paths & self._users.keys():
            self._path_log.write(key, self._class_paths(key))
        self._stale_policies.clear()
        self._stale_destinations.clear()
        self._stale_paths.clear()
        self._classes.touched.clear()

    def _update_destinations(self) -> None:
        """Policies get other numbers where many of their ranges give way to others in the same place, those with most
        first. Their sources change over one by one then, instead of all in one step that takes long.
        """
        counts, efforts = self._ledger.counts(), dict[PolicyRef, int]()
        for ref in self._stale_destinations:
            word = self._classes.policy_word(ref)
            if word is not None and ref in self._policies:
                now, before = self._find_destinations(ref), self._destinations.get(ref, {})
                efforts[ref] = sum(
                    count * delete_effort(counts.get(name, 0))
                    for family in Family
                    for name, count in _count_exchanged(word, family, before.get(family), now.get(family))
                )
        together = sum(efforts.values())
        for ref in sorted(efforts, key=efforts.__getitem__, reverse=True):
            if together <= STEP:
                break
            together -= efforts[ref]
            self._classes.renumber(ref)
            self._stale_pods |= self._sources.of_policy(ref)
            self._stale_ranges = True

    def _find_destinations(self, ref: PolicyRef) -> dict[Family, Destinations]:
        policy = self._policies[ref]
        return {
            family: find_destinations(policy, family, self._cluster[family])
            for family in Family
            if policy.concerns(family)
        }

    def _update_pods(self) -> None:
        """There are many, and many of them have the same policies."""
        known: dict[tuple[Family, frozenset[PolicyRef]], tuple[_ClassKey | None, bool]] = {}
        begun: set[PolicyRef] = set()
        for source in self._stale_pods:
            told = (source_family(source), self._sources.policies_of(source))
            if told not in known:
                known[told] = self._find_key(*told)
            key, ours = known[told]
            if key is not None and not ours and self._own not in self._sources.nodes_of(source):
                key = None
            former = self._class_of.get(source)
            if key == former:
                if key is not None:
                    self._put_class(source, key)
                continue
            if key is not None:
                self._class_of[source] = key
                self._join(key)
                self._put_class(source, key)
            if former is None:
                # A range may have decided for it, whose policies are among its own.
                begun |= told[1]
                continue
            self._path_log.leave(source, former)
            if key is None:
                del self._class_of[source]
                self._remove_class(source, former)
            self._leave(former)
        self._spoil(begun)
        self._stale_pods.clear()

    def _put_class(self, source: SourceNumber, key: _ClassKey) -> None:
        """What its own node sends, and what others do through the tunnel."""
        names, address, word = SETS[key[0]], source_word(source), self._classes.word(key[1])
        nodes = self._sources.nodes_of(source)
        if self._own in nodes:
            self._ledger.put(names.classes, address, word)
        else:
            self._ledger.remove(names.classes, address)
        senders = frozenset(self._marks[node] for node in nodes if node in self._marks)
        for mark in self._senders.get(source, frozenset()) - senders:
            self._ledger.remove(names.remote_classes, (str(mark), address))
        for mark in senders:
            self._ledger.put(names.remote_classes, (str(mark), address), word)
        if senders:
            self._senders[source] = senders
        else:
            self._senders.pop(source, None)

    def _remove_class(self, source: SourceNumber, key: _ClassKey) -> None:
        names, address = SETS[key[0]], source_word(source)
        self._ledger.remove(names.classes, address)
        for mark in self._senders.pop(source, frozenset()):
            self._ledger.remove(names.remote_classes, (str(mark), address))

    def _find_key(self, family: Family, refs: frozenset[PolicyRef]) -> tuple[_ClassKey | None, bool]:
        """The class of the pods with these policies, and whether all of them are this node's business. What a range
        says here of others is what it would say without them.
        """
        key = self._key(refs, family)
        policies = () if key is None else (self._policies[ref] for ref in key[1] if ref != CLOSED_REF)
        return key, any(_meant_for(policy, self._own) for policy in policies)

    def _key(self, refs: Iterable[PolicyRef], family: Family) -> _ClassKey | None:
        views = (self._policies[ref] for ref in refs if ref in self._policies)
        concerning = sorted((view for view in views if view.concerns(family)), key=lambda view: view.precedence)
        return (family, limit_policies([view.ref for view in concerning])) if concerning else None

    def _update_ranges(self, family: Family) -> None:
        former, now = self._range_class[family], dict[Span, _ClassKey]()
        for span, refs in self._sources.ranges(family):
            key = self._key(refs, family)
            if key is not None:
                now[span] = key
        for _, key in now.items() - former.items():
            self._join(key)
        for _, key in former.items() - now.items():
            self._leave(key)
        self._range_class[family] = now
        words: dict[ElementKey, ElementValue] = {
            span_word(span, family): self._classes.word(refs) for span, (_, refs) in now.items()
        }
        self._ledger.write(("ranges", family), {SETS[family].subnet_classes: words})

    def _join(self, key: _ClassKey) -> None:
        if key not in self._users:
            self._users[key] = 0
            self._classes.join(key[1])
            for ref in key[1]:
                self._classes_of.setdefault(ref, set()).add(key)
                self._stale_policies.add(ref)
        self._users[key] += 1

    def _leave(self, key: _ClassKey) -> None:
        self._spoil(key[1])
        self._users[key] -= 1
        if self._users[key]:
            return
        del self._users[key]
        self._path_log.forget(key)
        for ref in key[1]:
            self._classes_of[ref].discard(key)
            if not self._classes_of[ref]:
                del self._classes_of[ref]
        self._classes.leave(key[1])

    def _spoil(self, refs: Iterable[PolicyRef]) -> None:
        """One of the policies may have decided for a connection that another one decides for now, or none."""
        words = (self._classes.policy_word(ref) for ref in refs)
        self._decisions.spoil(word for word in words if word is not None)

    def _update_policy(self, ref: PolicyRef) -> None:
        """Its elements, and the ways of the classes that it is in."""
        word, policy = self._classes.policy_word(ref), self._policies.get(ref)
        former = self._numbers.pop(ref, None)
        if former is not None and former != word:
            self._decisions.follow(former, carried=False)
        if word is None or policy is None:
            self._destinations.pop(ref, None)
            self._written.pop(ref, None)
            self._ledger.write(("destinations", ref), {})
            self._ledger.write(("way", ref), {})
            return
        self._numbers[ref] = word
        if former != word or ref in self._stale_destinations:
            self._destinations[ref] = self._find_destinations(ref)
            self._writes += 1
            self._written[ref] = self._writes
            self._ledger.write(("destinations", ref), _destination_elements(word, self._destinations[ref]))
        self._ledger.write(("way", ref), self._way_elements(policy, word))
        self._decisions.follow(word, carried=policy.node is not None and policy.node == self._own)
        for key in self._classes_of.get(ref, ()):
            self._spoil(key[1])
            self._stale_paths.add(key)

    def _class_paths(self, key: _ClassKey) -> ClassPaths:
        """Without policies of which nothing is left by the ones before them."""
        family, refs = key
        paths: list[PolicyPath] = []
        for ref in refs:
            if ref == CLOSED_REF:
                destinations, path = Destinations(everywhere=True), CLOSED
            else:
                destinations, path = self._destinations[ref][family], self._path(self._policies[ref], family)
            if any(each.destinations.everywhere for each in paths):
                destinations = Destinations(within=destinations.within)
            if destinations != Destinations():
                paths.append(PolicyPath(destinations, path))
        return tuple(paths)

    def _way_elements(self, policy: PolicyView, word: str) -> _Words:
        found: _Words = {}
        if not policy.destinations:
            found[EVERYWHERE] = {word: word}
        for family in Family:
            if not policy.concerns(family):
                continue
            names, path = SETS[family], self._path(policy, family)
            if path != OPEN:
                found[names.ways] = {word: path}
            if path == HERE and policy.eip is None:
                found[NODE_IPS] = {word: None}
            elif path == HERE:
                found[names.eips] = {word: str(policy.address(family))}
        return found

    def _path(self, policy: PolicyView, family: Family) -> int:
        if not policy.serves(family):
            return CLOSED
        if policy.node is not None:
            if policy.node == self._own:
                return HERE
            if policy.node in self._marks:
                return self._marks[policy.node]
        return OPEN if policy.fail_open else CLOSED


def solicited_node(address: str) -> str:
    """The multicast group where neighbours ask for an IPv6 address (RFC 4291, 2.7.1)."""
    return str(IPv6Address(_SOLICITED_NODE | int(IPv6Address(address)) & 0xFFFFFF))


def _mesh_elements(peers: Iterable[Peer]) -> _Words:
    """Of two peers with the same address, the first has it."""
    words: _Words = {name: {} for name in (NODES, PEERS, *(SETS[family].mesh for family in Family))}
    for peer in peers:
        words[NODES][str(peer.mac)] = peer.mark
        words[PEERS][str(peer.mark), str(peer.mac)] = None
        for address in peer.addresses:
            words[SETS[Family.of(address)].mesh].setdefault(str(address), peer.mark)
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


def _aim(policy: PolicyView) -> tuple[object, ...]:
    """What decides which destinations it has, and which are guarded for it."""
    return policy.destinations, policy.closed, *(policy.concerns(family) for family in Family)


def _count_exchanged(
    word: str, family: Family, before: Destinations | None, now: Destinations | None
) -> Iterator[tuple[str, int]]:
    """By name of the set: how many ranges go where others come that have a part of them."""
    old, new = before or Destinations(), now or Destinations()
    for name, had, has in (
        (SETS[family].ranges[shard_of(word)].name, old.beyond, new.beyond),
        (SETS[family].cluster_ranges.name, old.within, new.within),
    ):
        gone, come = sorted({*had} - {*has}), sorted({*has} - {*had})
        yield name, len(touching(gone, come))


def _destination_elements(word: str, found: Mapping[Family, Destinations]) -> _Words:
    words: _Words = {}
    for family, destinations in found.items():
        names = SETS[family]
        for name, spans in (
            (names.ranges[shard_of(word)], destinations.beyond),
            (names.cluster_ranges, destinations.within),
        ):
            if spans:
                words[name] = {(word, span_word(span, family)): word for span in spans}
    return words


class _Guard:
    """The destinations of policies that fail closed, of one family."""

    def __init__(self, family: Family, ledger: ElementLedger) -> None:
        self._family = family
        self._ledger = ledger
        self._all = 0
        self._networks: Counter[IPNetwork] = Counter()
        self._beyond = NetworkUnion(family)
        self._within = NetworkUnion(family)

    def add(self, network: IPNetwork | None, cluster: Sequence[Span]) -> None:
        """None: all beyond the cluster."""
        if network is None:
            self._count_all(1)
            return
        self._networks[network] += 1
        if self._networks[network] == 1:
            self._change(SETS[self._family].guarded, self._beyond.add(network))
            if split_networks([network], self._family, cluster)[1]:
                self._change(SETS[self._family].guarded_cluster, self._within.add(network))

    def remove(self, network: IPNetwork | None, cluster: Sequence[Span]) -> None:
        """One that was added; `cluster` is what it was at the last `add` or `move`."""
        if network is None:
            self._count_all(-1)
            return
        self._networks[network] -= 1
        if not self._networks[network]:
            del self._networks[network]
            self._change(SETS[self._family].guarded, self._beyond.remove(network))
            if split_networks([network], self._family, cluster)[1]:
                self._change(SETS[self._family].guarded_cluster, self._within.remove(network))

    def move(self, cluster: Sequence[Span]) -> None:
        """The cluster's own addresses are other ones. O(networks)."""
        self._within = NetworkUnion(self._family)
        words: dict[ElementKey, ElementValue] = {}
        for network in split_networks(self._networks, self._family, cluster)[1]:
            gone, come = self._within.add(network)
            for word in gone:
                del words[word]
            words |= dict.fromkeys(come)
        name = SETS[self._family].guarded_cluster
        for key in self._ledger.keys(name) - words.keys():
            self._ledger.remove(name, key)
        for key in words:
            self._ledger.put(name, key, None)

    def _count_all(self, more: int) -> None:
        self._all += more
        if self._all:
            self._ledger.put(GUARDED_ALL, FAMILY_WORDS[self._family], None)
        else:
            self._ledger.remove(GUARDED_ALL, FAMILY_WORDS[self._family])

    def _change(self, name: SetName, words: tuple[list[str], list[str]]) -> None:
        gone, come = words
        for word in gone:
            self._ledger.remove(name, word)
        for word in come:
            self._ledger.put(name, word, None)


def _reach(policy: PolicyView, own: NodeName | None) -> tuple[object, ...]:
    """What decides which sources a policy concerns, and which of them matter on this node."""
    return (
        policy.pod_subnets,
        policy.precedence,
        _meant_for(policy, own),
        *(policy.concerns(family) for family in Family),
    )


def _meant_for(policy: PolicyView, own: NodeName | None) -> bool:
    return policy.node == own or (own is not None and policy.given == own)
