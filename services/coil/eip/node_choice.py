"""The node for a policy, or for an EIP with all its policies, by the gateway's selection policy.

Counts are of policies, within one gateway. Ties are broken at random, so that of several gateways not all begin with
the same node; what was chosen is in the status and stays.
"""

from collections.abc import Callable, Collection, Iterable

from coil.crd.egress_gateway import NodePolicy
from coil.crd.names import NodeName
from coil.eip.claim import GatewayRules

Random = Callable[[], float]


class NodeChoice:
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
