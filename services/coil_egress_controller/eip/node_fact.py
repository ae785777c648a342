"""What is known of the nodes of a gateway at the moment of a decision: their tunnels, leases and Nodes put together."""

from collections.abc import Callable, Collection

from coil.crd.builtin import Node
from coil.crd.egress_gateway import EgressGateway, GatewayNode
from coil.crd.egress_tunnel import EgressTunnel, TunnelPhase
from coil.crd.names import NodeName
from coil.eip.gateway_lease import GatewayLease
from coil.eip.gateway_status import NodeFacts
from coil.eip.placement import Candidate
from coil_egress_controller.eip.view import EipView

SILENT_PHASES = frozenset({TunnelPhase.HEARTBEAT_TIMEOUT.value, TunnelPhase.NODE_NOT_READY.value})
"""What the controller says of a gateway node; all else is the agent's."""


def judge_phase(tunnel: EgressTunnel | None, node: Node | None, tenure: GatewayLease | None) -> str:
    """The phase of the tunnel of a node that some gateway selects, by what its agent and its lease say.

    A node whose lease is not held is no gateway, whatever its agent has last written. One that holds it again has to
    say anew that its tunnel stands.
    """
    phase = tunnel.status.phase if tunnel is not None else TunnelPhase.PENDING.value
    if tenure is not None and not tenure.held and (phase == TunnelPhase.READY or phase in SILENT_PHASES):
        return (TunnelPhase.HEARTBEAT_TIMEOUT if is_ready(node) else TunnelPhase.NODE_NOT_READY).value
    if phase in SILENT_PHASES and (is_ready(node) or (tenure is not None and tenure.held)):
        return TunnelPhase.INIT.value
    return phase


class NodeFactSource:
    """Reads caches, and the leases by `tenure`; `miss` hears of a node that a status lists and that has no lease."""

    def __init__(
        self, view: EipView, *, tenure: Callable[[str], GatewayLease | None], miss: Callable[[str, int], None]
    ) -> None:
        self._view = view
        self._tenure = tenure
        self._miss = miss

    def look(self, gateway: EgressGateway, selected: Collection[str]) -> tuple[list[NodeFacts], list[Candidate]]:
        """All nodes that are selected or that the status lists, and of them those that may be chosen."""
        listed = {entry.name: entry for entry in gateway.status.node_list}
        facts, candidates = [], []
        for name in sorted({*selected, *listed}):
            fact = self._fact(gateway, name, listed.get(name), is_selected=name in selected)
            facts.append(fact)
            if fact.selected:
                candidates.append(Candidate(node=fact.name, ready=fact.held and fact.phase == TunnelPhase.READY))
        return facts, candidates

    def _fact(self, gateway: EgressGateway, name: str, listed: GatewayNode | None, *, is_selected: bool) -> NodeFacts:
        node, tunnel, tenure = self._view.nodes.get(name), self._view.tunnels.get(name), self._tenure(name)
        carries = listed is not None and any(entry.ipv4 or entry.ipv6 for entry in listed.eips)
        known_term = listed.term if listed is not None else 0
        # A lease that is missing may have been deleted under an agent that is alive; one with an earlier term than the
        # status has is a picture from the past. Either way nothing says yet that the node has lost its addresses.
        if tenure is None or tenure.term < known_term:
            if tenure is None and carries:
                self._miss(name, known_term)
            term, held = known_term, carries
        else:
            term, held = tenure.term, tenure.held
        return NodeFacts(
            name=NodeName(name),
            phase=judge_phase(tunnel, node, tenure),
            term=term,
            applied=None if tenure is None else tenure.applied.get(gateway.metadata.uid),
            held=held,
            selected=is_selected and node is not None and not node.metadata.deleting,
        )


def is_ready(node: Node | None) -> bool:
    """Whether Kubernetes holds the node for ready."""
    return node is not None and any(
        condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions
    )
