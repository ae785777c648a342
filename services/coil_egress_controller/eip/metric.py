"""The metrics of floating egress addresses: the state of gateways, and the work of a leader.

The state is read from the caches at the moment of a scrape, so that it cannot be stale; every replica exports it,
leader or not: take the `max by (gateway)`. The rest counts what this replica has done.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coil.crd.egress_gateway import EgressGateway, GatewayNode
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.egress_tunnel import TunnelPhase
from coil.reconcile.cache import Cache

_SECONDS: Final = (0.5, 0.7, 0.75, 0.8, 0.9, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 60.0)
"""Fine where the usual fence and its margin are: 0.7 s."""
NO_GATEWAY: Final = "(none)"


class SliceWrite(StrEnum):
    """A write of an EgressEndpointSlice."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class NodeState(StrEnum):
    """What a gateway has of a node that it selects."""

    CARRYING = "carrying"
    IDLE = "idle"
    """Could carry addresses, and has none."""
    UNREADY = "unready"


class EipMetrics:
    """One per registry. Every operation has its series from the start, so that an alert may rely on its zero."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._revocations = prometheus_client.Counter(
            "coil_egress_gateway_revocations",
            "Revoked leases of silent nodes, whose addresses can then move to other nodes.",
            registry=registry,
        )
        self._detection = Histogram(
            "coil_egress_gateway_detection_seconds",
            "Time from a node's last sign of life to the revocation of its lease.",
            registry=registry,
            buckets=_SECONDS,
        )
        operations = ", ".join(SliceWrite)
        writes = prometheus_client.Counter(
            "coil_egress_endpoint_slice_writes",
            f"Successful writes of EgressEndpointSlices, by operation: {operations}.",
            ["operation"],
            registry=registry,
        )
        self._writes = {operation: writes.labels(operation.value) for operation in SliceWrite}

    def count_revocation(self, seconds: float) -> None:
        """`seconds` after the node's lease was last seen to change."""
        self._revocations.inc()
        self._detection.observe(seconds)

    def count_write(self, operation: SliceWrite) -> None:
        self._writes[operation].inc()


class EipCollector(Collector):
    """Deleted gateways have no series."""

    def __init__(
        self,
        *,
        gateways: Cache[EgressGateway],
        policies: Cache[EgressGatewayPolicy],
        registry: CollectorRegistry,
    ) -> None:
        self._gateways = gateways
        self._policies = policies
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        # Without it, registration would scrape, and the caches may not be there yet.
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        addresses, nodes, policies, limits = self._families()
        by_gateway: dict[str, list[EgressGatewayPolicy]] = {}
        for policy in self._policies.items():
            by_gateway.setdefault(policy.status.egress_gateway_name, []).append(policy)
        # A policy whose status names no gateway, or a deleted one, belongs to none.
        strays = [policy for name, found in by_gateway.items() for policy in found if not self._gateways.get(name)]
        _add_policies(policies, NO_GATEWAY, strays)
        for gateway in self._gateways.items():
            name, served = gateway.metadata.name, by_gateway.get(gateway.metadata.name, [])
            _add_policies(policies, name, served)
            usage, assigned = gateway.status.ip_usage, _assigned(gateway, served)
            for family, total, free in (
                ("ipv4", usage.ipv4_total, usage.ipv4_free),
                ("ipv6", usage.ipv6_total, usage.ipv6_free),
            ):
                if total:
                    addresses.add_metric([name, family, "assigned"], assigned[family])
                    addresses.add_metric([name, family, "free"], free)
            states = Counter(node_state(listed) for listed in gateway.status.node_list)
            for state in NodeState:
                nodes.add_metric([name, state.value], states[state])
            if limit := gateway.status.policy_usage.limit:
                limits.add_metric([name], limit)
        yield from (addresses, nodes, policies, limits)

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, ...]:
        return (
            GaugeMetricFamily(
                "coil_egress_gateway_addresses",
                "Addresses of the gateway: assigned (to a policy, or not yet removed from a node) or free.",
                labels=["gateway", "family", "state"],
            ),
            GaugeMetricFamily(
                "coil_egress_gateway_nodes",
                f"Nodes that the gateway selects, or that still have its addresses, by state: {', '.join(NodeState)}.",
                labels=["gateway", "state"],
            ),
            GaugeMetricFamily(
                "coil_egress_gateway_policies",
                "Policies of the gateway: placed on a node, or unplaced.",
                labels=["gateway", "state"],
            ),
            GaugeMetricFamily(
                "coil_egress_gateway_policy_limit",
                "Policies that the gateway may serve; it refuses further ones.",
                labels=["gateway"],
            ),
        )


def node_state(listed: GatewayNode) -> NodeState:
    """An address that leaves is carried until it has left; so is the node's own (useNodeIP)."""
    if listed.eips:
        return NodeState.CARRYING
    return NodeState.IDLE if listed.status == TunnelPhase.READY else NodeState.UNREADY


def _add_policies(family: GaugeMetricFamily, gateway: str, policies: Iterable[EgressGatewayPolicy]) -> None:
    placed = Counter(bool(policy.status.node) for policy in policies)
    family.add_metric([gateway, "placed"], placed[True])
    family.add_metric([gateway, "unplaced"], placed[False])


def _assigned(gateway: EgressGateway, policies: Iterable[EgressGatewayPolicy]) -> dict[str, int]:
    """Counted, by family: the totals of large ranges are capped, so a difference would not say it.

    A policy keeps its address while no node carries it; then only its own status has it.
    """
    pairs = {(policy.status.eip.ipv4, policy.status.eip.ipv6) for policy in policies}
    pairs |= {(entry.ipv4, entry.ipv6) for listed in gateway.status.node_list for entry in listed.eips}
    return {
        "ipv4": len({ipv4 for ipv4, _ in pairs if ipv4}),
        "ipv6": len({ipv6 for _, ipv6 in pairs if ipv6}),
    }
