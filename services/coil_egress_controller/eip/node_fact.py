"""What is known of a gateway's nodes at the moment of a decision, put together from their tunnels, leases and Nodes."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from coil.crd.builtin import Node
from coil.crd.egress_gateway import EgressGateway, GatewayNode
from coil.crd.egress_tunnel import EgressTunnel, TunnelPhase
from coil.crd.names import NodeName
from coil.eip.gateway_lease import GatewayLease
from coil.eip.gateway_status import NodeFacts
from coil.eip.placement import Candidate
from coil.reconcile.cache import Cache

SILENT_PHASES = frozenset({TunnelPhase.HEARTBEAT_TIMEOUT.value, TunnelPhase.NODE_NOT_READY.value})
"""The phases that the controller writes of a gateway node; all others are the agent's."""


def select_phase(tunnel: EgressTunnel | None, node: Node | None, lease: GatewayLease | None) -> str:
    """The phase of the tunnel of a node that some gateway selects, from its agent's report and its lease.

    A node whose lease is not held is no gateway, whatever its agent has last reported. One that holds it again has to
    report again that its tunnel is up.
    """
    phase = tunnel.status.phase if tunnel is not None else TunnelPhase.PENDING.value
    if lease is not None and not lease.held and (phase == TunnelPhase.READY or phase in SILENT_PHASES):
        return (TunnelPhase.HEARTBEAT_TIMEOUT if is_ready(node) else TunnelPhase.NODE_NOT_READY).value
    if phase in SILENT_PHASES and (is_ready(node) or (lease is not None and lease.held)):
        return TunnelPhase.INIT.value
    return phase


class GatewayFacts(NamedTuple):
    """All nodes that are selected or that the status lists, and of them those that may be chosen.

    `missing` are nodes that the status lists with addresses and that have no lease, with the term that it lists.
    """

    nodes: list[NodeFacts]
    candidates: list[Candidate]
    missing: Mapping[NodeName, int]


class NodeFactSource:
    """Reads caches, and the leases by `lease_of`. Changes nothing."""

    def __init__(
        self,
        *,
        nodes: Cache[Node],
        tunnels: Cache[EgressTunnel],
        lease_of: Callable[[str], GatewayLease | None],
    ) -> None:
        self._nodes = nodes
        self._tunnels = tunnels
        self._lease_of = lease_of

    def read(self, gateway: EgressGateway, selected: Collection[str]) -> GatewayFacts:
        listed = {entry.name: entry for entry in gateway.status.node_list}
        facts, candidates, missing = [], [], {}
        for name in sorted({*selected, *listed}):
            entry = listed.get(name)
            fact = self._fact(gateway, name, entry, is_selected=name in selected)
            facts.append(fact)
            if fact.selected:
                candidates.append(Candidate(node=fact.name, ready=fact.held and fact.phase == TunnelPhase.READY))
            if entry is not None and _carries(entry) and self._lease_of(name) is None:
                missing[fact.name] = entry.term
        return GatewayFacts(facts, candidates, missing)

    def _fact(self, gateway: EgressGateway, name: str, listed: GatewayNode | None, *, is_selected: bool) -> NodeFacts:
        node, tunnel, lease = self._nodes.get(name), self._tunnels.get(name), self._lease_of(name)
        known_term = listed.term if listed is not None else 0
        # A lease that is missing may have been deleted under an agent that is alive; one with an earlier term than the
        # status has is out of date. Either way nothing says yet that the node has lost its addresses.
        if lease is None or lease.term < known_term:
            term, held = known_term, listed is not None and _carries(listed)
        else:
            term, held = lease.term, lease.held
        return NodeFacts(
            name=NodeName(name),
            phase=select_phase(tunnel, node, lease),
            term=term,
            applied=None if lease is None else lease.applied.get(gateway.metadata.uid),
            held=held,
            selected=is_selected and node is not None and not node.metadata.deleting,
        )


def is_ready(node: Node | None) -> bool:
    """Whether the node exists and Kubernetes considers it ready."""
    return node is not None and node.ready


def _carries(listed: GatewayNode) -> bool:
    return any(entry.ipv4 or entry.ipv6 for entry in listed.eips)
