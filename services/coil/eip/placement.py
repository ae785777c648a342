"""Which policy gets which floating address on which node: one gateway as a whole, from what was before.

    spec ─► GatewayRules ┐
    nodes ─► Candidates  ├─► place ─► Placement ─► coil.eip.gateway_status
    policies ─► Claims   │
    status ─► former     ┘

In this order, the older policy first: addresses that are held already stay where they are; those whose node is lost are
spread over the ready ones; then come the policies that ask for an address, and at last those that take any, or their
node's. A gateway serves so many policies and no more; those that it has served stay.

Invariants: an EIP is on one node, with all its policies, which are of one namespace unless the gateway shares with any.
An address has one partner. A policy whose address still lies in the ranges keeps it, and a ready node keeps all that it
has: nothing moves to make room or to even things out, and nothing moves back to a node that returns. Placing again,
with the result as what was before, changes nothing. Without a ready node the addresses stay with their policies. Where
namespaces may no longer share an address, that of its oldest policy keeps it.

For a policy that takes any address the node comes first, as proposed, and the address is one that is on that node
already, or on none. So neither limit is passed while a node and an address with room are left: where all addresses are
in use, only nodes that have some are asked.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coil.crd.egress_gateway import AddressPolicy, NodePolicy, PolicyRef
from coil.crd.names import NodeName
from coil.eip.claim import Candidate, Claim, Eip, GatewayRules, Placed, Refusal, RefusalReason, parse_rules
from coil.eip.eip_pool import Binding, EipIndex
from coil.kernel.family import IPAddress

__all__ = [
    "Candidate",
    "Claim",
    "Eip",
    "GatewayRules",
    "Placed",
    "Placement",
    "Refusal",
    "RefusalReason",
    "parse_rules",
    "place",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Sorted by policy; every claim is either placed or refused."""

    placed: tuple[Placed, ...] = ()
    refused: Mapping[PolicyRef, Refusal] = field(default_factory=dict)


def place(
    rules: GatewayRules,
    *,
    candidates: Sequence[Candidate],
    claims: Sequence[Claim],
    former: Sequence[Placed],
    reserved: Iterable[IPAddress] = (),
    limit: int,
    random: Callable[[], float],
) -> Placement:
    """The placement of `claims`, each of another policy. `random` gives [0, 1); nothing else is left to chance.

    `reserved` are addresses of Nodes, which no policy gets. One that a policy has already stays with it, though no node
    takes it: a Node's own kubelet says which addresses it has, and must not move policies with that. `former` may be of
    policies that are gone, and of nodes and addresses that are not the gateway's any more. `limit` is how many policies
    are placed at most; those of `former` are, whatever it is.
    """
    work = _Work(rules, candidates, limit, random)
    before = {placed.policy: placed for placed in former}
    newcomers = work.keep(sorted(claims, key=lambda claim: (claim.since, claim.policy)), before)
    work.reserve(reserved)
    work.assign_nodes()
    for claim in newcomers:
        if claim.asked is not None:
            work.grant(claim, claim.asked)
    for claim in newcomers:
        if claim.use_node_ip:
            work.lend(claim)
        elif claim.asked is None:
            work.allot(claim)
    return work.result()


class _Work:
    """One placement under way. `own` are the policies that leave by their node's own addresses."""

    def __init__(
        self, rules: GatewayRules, candidates: Sequence[Candidate], limit: int, random: Callable[[], float]
    ) -> None:
        self._limit = limit
        self._served = 0
        self._policy = rules.address_policy
        self._tenant = rules.tenant
        self._preferred_node = rules.preferred_node
        self._random = random
        self._nodes = NodeScheduler(rules, (one.node for one in candidates if one.ready), random)
        self._index = EipIndex(rules)
        self._own: dict[PolicyRef, NodeName | None] = {}
        self._together: dict[str, Binding] = {}
        """What those have that stand for an EgressClusterPolicy, by its name."""
        self._lent: dict[str, NodeName] = {}
        """The same of those that leave by their node's own addresses."""
        self._homeless: list[Claim] = []
        """Of those, whose node cannot carry them any more."""
        self._refused: dict[PolicyRef, Refusal] = {}
        self._conflicts: dict[PolicyRef, Eip] = {}
        """Pairs that cannot be, by who asked for them. What they conflict with is told when all is placed: looked at
        again, it is all there from the beginning.
        """

    def keep(self, claims: Sequence[Claim], before: Mapping[PolicyRef, Placed]) -> list[Claim]:
        """Take over what still holds; the claims that are left get something new. Both in the order of `claims`."""
        newcomers: set[PolicyRef] = set()
        kept: list[tuple[Claim, Eip, NodeName | None]] = []
        for claim in claims:
            placed = before.get(claim.policy)
            if placed is None and claim.cluster_policy:
                # As egressgateway has written it.
                placed = before.get(PolicyRef(name=claim.cluster_policy))
            if claim.use_node_ip and placed is not None:
                self._lend(claim, None if placed.eip is not None else self._ready(placed.node))
            elif (eip := self._still(claim, placed)) is not None and placed is not None:
                kept.append((claim, eip, self._ready(placed.node)))
            else:
                newcomers.add(claim.policy)
        # Whole pairs before lone addresses, which look for a partner that is free.
        kept.sort(key=lambda item: item[1].ipv4 is None or item[1].ipv6 is None)
        home: dict[int, NodeName] = {}
        for claim, eip, node in kept:
            tenant = self._tenant(claim)
            binding = self._index.adopt(eip, tenant)
            if binding is None or binding.tenant != tenant:
                newcomers.add(claim.policy)
                continue
            self._index.join(binding, claim.policy)
            self._remember(claim, binding)
            self._served += 1
            if node is not None:
                home.setdefault(id(binding), node)
        for binding in self._index.bindings:
            if (node := home.get(id(binding))) is not None:
                self._assign(binding, node)
        return [claim for claim in claims if claim.policy in newcomers]

    def reserve(self, addresses: Iterable[IPAddress]) -> None:
        """Keep what nobody has yet from being given."""
        for address in addresses:
            self._index.reserve(address)

    def assign_nodes(self) -> None:
        """Give a node to what has lost its own, the heaviest first, as then the loads come out most alike."""
        unplaced = [binding for binding in self._index.bindings if not binding.assigned]
        for binding in sorted(unplaced, key=lambda binding: -len(binding.policies)):
            self._assign(binding, self._nodes.choose(len(binding.policies)))
        for claim in self._homeless:
            node = self._own[claim.policy] = self._choose_own(claim)
            self._nodes.add(node, 1)

    def grant(self, claim: Claim, asked: Eip) -> None:
        """The address that was asked for, or the refusal."""
        if self._index.pool.trim(asked) != asked:
            message = f"{asked} does not lie in the ranges of the gateway"
            self._refused[claim.policy] = Refusal(RefusalReason.OUT_OF_RANGE, message)
            return
        if reserved := self._index.reserved & {asked.ipv4, asked.ipv6}:
            message = f"{min(map(str, reserved))} is an address of a Node"
            self._refused[claim.policy] = Refusal(RefusalReason.TAKEN, message)
            return
        binding = self._index.adopt(asked, self._tenant(claim))
        if binding is None:
            self._conflicts[claim.policy] = asked
        elif binding.tenant != self._tenant(claim):
            message = f"{asked} is bound to a policy of another namespace"
            self._refused[claim.policy] = Refusal(RefusalReason.TAKEN, message)
        elif self._is_full(claim):
            return
        elif binding.assigned:
            self._join(binding, claim.policy)
        else:
            self._begin(binding, claim.policy, self._nodes.choose(1))

    def lend(self, claim: Claim) -> None:
        """A node's own addresses."""
        if not self._is_full(claim):
            self._lend(claim, self._choose_own(claim))

    def allot(self, claim: Claim) -> None:
        """Any address, by the address policy, on the node that the node policy says."""
        if (together := self._together.get(claim.cluster_policy)) is not None:
            if not self._is_full(claim):
                self._join(together, claim.policy)
            return
        index, free, tenant = self._index, self._index.pool.free, self._tenant(claim)
        node = self._nodes.choose(1) if free or claim.unused else self._node_with_addresses(tenant)
        used, unfilled = index.on(node, tenant), index.unfilled(node, tenant)
        if claim.unused:
            used, unfilled = [], {}
        if not free and not used:
            message = "every address is in use by others" if index.pool.size else "the gateway has no addresses"
            self._refused[claim.policy] = Refusal(RefusalReason.NO_ADDRESS, message)
            return
        if self._is_full(claim):
            return
        if self._policy is AddressPolicy.LIMIT and unfilled:
            binding = next(iter(unfilled.values()))
            self._join(binding, claim.policy)
            self._remember(claim, binding)
            return
        if free and self._policy is not AddressPolicy.RANDOM:
            used = []
        number = draw(free + len(used), self._random)
        if number < len(used):
            binding = used[number]
            self._join(binding, claim.policy)
        else:
            binding = index.bind(index.pool.unused(number - len(used)), tenant)
            self._begin(binding, claim.policy, node)
        self._remember(claim, binding)

    def result(self) -> Placement:
        placed = [Placed(policy=policy, eip=None, node=node) for policy, node in self._own.items()]
        for binding in self._index.bindings:
            placed += [Placed(policy=policy, eip=binding.eip, node=binding.node) for policy in binding.policies]
        placed.sort(key=lambda one: (one.policy.namespace, one.policy.name))
        conflicts = {
            policy: Refusal(RefusalReason.PAIR, f"{asked} cannot go together: {self._index.partners(asked)}")
            for policy, asked in self._conflicts.items()
        }
        return Placement(placed=tuple(placed), refused=dict(sorted((self._refused | conflicts).items())))

    def _still(self, claim: Claim, placed: Placed | None) -> Eip | None:
        """What the policy may keep of the address that it had."""
        eip = None if placed is None or placed.eip is None else self._index.pool.trim(placed.eip)
        return eip if eip is not None and (claim.asked is None or eip.agrees(claim.asked)) else None

    def _lend(self, claim: Claim, node: NodeName | None) -> None:
        self._own[claim.policy] = node
        self._nodes.add(node, 1)
        self._served += 1
        if node is None:
            self._homeless.append(claim)
        elif claim.cluster_policy:
            self._lent.setdefault(claim.cluster_policy, node)

    def _choose_own(self, claim: Claim) -> NodeName | None:
        """Whose addresses the policy is to leave by."""
        node = self._lent.get(claim.cluster_policy) or self._nodes.choose(1)
        if claim.cluster_policy and node is not None:
            self._lent.setdefault(claim.cluster_policy, node)
        return node

    def _remember(self, claim: Claim, binding: Binding) -> None:
        if claim.cluster_policy:
            self._together.setdefault(claim.cluster_policy, binding)

    def _ready(self, node: NodeName | None) -> NodeName | None:
        return node if node in self._nodes.counts else None

    def _node_with_addresses(self, tenant: str) -> NodeName | None:
        """Where all addresses are in use: a node that has some of the tenant's, with room in them if it can be had."""
        on, nodes = self._index.on, self._nodes
        if self._policy is AddressPolicy.LIMIT:
            unfilled = nodes.choose(1, [node for node in nodes.counts if self._index.unfilled(node, tenant)])
            if unfilled is not None:
                return unfilled
        return nodes.choose(1, [node for node in nodes.counts if on(node, tenant)])

    def _preferred(self, binding: Binding) -> NodeName | None:
        """Where somebody wants it to be, if it can be there."""
        return self._ready(self._preferred_node(binding.eip))

    def _assign(self, binding: Binding, node: NodeName | None) -> None:
        node = self._preferred(binding) or node
        self._index.assign(binding, node)
        self._nodes.add(node, len(binding.policies))

    def _is_full(self, claim: Claim) -> bool:
        """Whether there is no room for a policy; it is refused then."""
        if self._served < self._limit:
            return False
        message = f"the gateway serves {self._served} policies, and may serve {self._limit}"
        refusal = Refusal(RefusalReason.FULL, f"{message}: use another, or ask an administrator")
        self._refused[claim.policy] = refusal
        return True

    def _begin(self, binding: Binding, policy: PolicyRef, node: NodeName | None) -> None:
        self._served += 1
        self._index.join(binding, policy)
        self._assign(binding, node)

    def _join(self, binding: Binding, policy: PolicyRef) -> None:
        self._served += 1
        self._index.join(binding, policy)
        self._nodes.add(binding.node, 1)


Random = Callable[[], float]


class NodeScheduler:
    """`ready` are the nodes that can carry addresses. `random` gives [0, 1)."""

    def __init__(self, rules: GatewayRules, ready: Iterable[NodeName], random: Random) -> None:
        self._policy = rules.node_policy
        self._limit = rules.node_limit
        self._random = random
        self.counts: dict[NodeName, int] = dict.fromkeys(sorted(ready), 0)

    def add(self, node: NodeName | None, policies: int) -> None:
        """So many more are on `node`; without effect where that is not one of the ready ones."""
        if node in self.counts:
            self.counts[node] += policies

    def choose(self, policies: int, among: Collection[NodeName] | None = None) -> NodeName | None:
        """The node that so many policies are to go to together, of the ready ones or of some of them; None of none.

        AverageSelection: the one with the fewest. MinimumNodes: the one with the most. Limit: the one with the most
        that has room for all of them; where none has, one that is not full yet, otherwise any.
        """
        counts = self.counts if among is None else {node: self.counts[node] for node in sorted(among)}
        if not counts:
            return None
        match self._policy:
            case NodePolicy.MINIMUM:
                return self._one(counts, max(counts.values()))
            case NodePolicy.LIMIT:
                room = [count for count in counts.values() if count + policies <= self._limit]
                if room:
                    return self._one(counts, max(room))
                open_nodes = [node for node, count in counts.items() if count < self._limit]
                return pick(open_nodes or list(counts), self._random)
        return self._one(counts, min(counts.values()))

    def _one(self, counts: dict[NodeName, int], wanted: int) -> NodeName:
        return pick([node for node, count in counts.items() if count == wanted], self._random)


def pick(items: list[NodeName], random: Random) -> NodeName:
    """One of them; asks `random` only where there is a choice."""
    return items[0] if len(items) == 1 else items[draw(len(items), random)]


def draw(count: int, random: Random) -> int:
    """A number from 0 to `count` − 1, also where `count` has more digits than a float."""
    return min(int(random() * count), count - 1)
