"""Metrics of a node's agent: its lease, its addresses, and its work on the kernel."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_CALL_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.6)
_WORK_SECONDS = (0.002, 0.01, 0.05, 0.2, 1.0, 5.0, 30.0)


class Renewal(StrEnum):
    """What became of a renewal."""

    ACKNOWLEDGED = "acknowledged"
    CONFLICT = "conflict"
    """The Lease was written by something else; it was read and the renewal sent again."""
    FAILED = "failed"


class Operation(StrEnum):
    """A step of the work on the kernel."""

    COMPUTE = "compute"
    """In this process: what is to be different."""
    OVERLAY = "overlay"
    """Tunnel, peers, marks."""
    RULES = "rules"
    """A comparison of the tables with all that is in them."""
    ELEMENTS = "elements"
    ADDRESSES = "addresses"
    ANNOUNCE = "announce"
    REFRESH = "fuse"
    """The kernel's timeouts, after a renewal."""


class LeaseMetrics:
    """One per registry. Every result has its series from the start, so that an alert may rely on its zero."""

    def __init__(self, registry: CollectorRegistry) -> None:
        results = ", ".join(Renewal)
        renewals = Counter(
            "coil_egress_eip_lease_renewals", f"Renewals by result: {results}.", ["result"], registry=registry
        )
        self._renewals = {result: renewals.labels(result.value) for result in Renewal}
        self._seconds = Histogram(
            "coil_egress_eip_lease_renewal_seconds",
            "Time until the API server answered a renewal, regardless of the result.",
            registry=registry,
            buckets=_CALL_SECONDS,
        )
        self._held = Gauge(
            "coil_egress_eip_lease_held", "1 while this node may carry floating addresses.", registry=registry
        )
        self._term = Gauge(
            "coil_egress_eip_lease_term",
            "Last term of the lease held by this node; 0 if there was none.",
            registry=registry,
        )
        self._losses = Counter(
            "coil_egress_eip_lease_losses", "Number of times that a term ended, for any reason.", registry=registry
        )

    def count(self, result: Renewal) -> None:
        self._renewals[result].inc()

    @contextmanager
    def measured(self) -> Iterator[None]:
        with self._seconds.time():
            yield

    def set_term(self, term: int, *, held: bool) -> None:
        self._held.set(1 if held else 0)
        self._term.set(term)
        if not held:
            self._losses.inc()


class ProbeMetrics:
    """One per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._probes = Counter(
            "coil_egress_eip_nudges",
            "Times that a pod was made to send on a connection whose path has changed.",
            registry=registry,
        )
        self._forgotten = Counter(
            "coil_egress_eip_forgotten_connections",
            "Connections deleted from conntrack because their translation did not match their new path.",
            registry=registry,
        )
        self._failures = Counter(
            "coil_egress_eip_nudge_failures", "Steps of this work that the kernel rejected.", registry=registry
        )

    def count_probes(self, number: int) -> None:
        self._probes.inc(number)

    def count_forgotten(self, number: int) -> None:
        self._forgotten.inc(number)

    def count_failure(self) -> None:
        self._failures.inc()


class NodeMetrics:
    """One per registry. Every operation has its series from the start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        operations = ", ".join(Operation)
        seconds = Histogram(
            "coil_egress_eip_apply_seconds",
            f"Duration of a step that changes kernel state, by operation: {operations}.",
            ["operation"],
            registry=registry,
            buckets=_WORK_SECONDS,
        )
        failures = Counter(
            "coil_egress_eip_apply_failures", "Steps that the kernel rejected.", ["operation"], registry=registry
        )
        self._seconds = {operation: seconds.labels(operation.value) for operation in Operation}
        self._failures = {operation: failures.labels(operation.value) for operation in Operation}
        self._addresses = Gauge(
            "coil_egress_eip_addresses", "Floating addresses that this node carries.", registry=registry
        )
        self._elements = Gauge(
            "coil_egress_eip_elements", "Elements of the nftables sets and maps, by set.", ["set"], registry=registry
        )
        self._peers = Gauge("coil_egress_eip_peers", "Nodes that are peers of this node's tunnel.", registry=registry)
        self._awaited = Gauge(
            "coil_egress_eip_awaited_pods",
            "Pods of this node that policies select and whose addresses are not known yet; meanwhile, senders with "
            "unknown addresses do not reach the destinations of policies that fail closed.",
            registry=registry,
        )
        self._excess = Gauge(
            "coil_egress_eip_policies_over_limit",
            "Policies that exceed the limits of their namespaces; what they apply to is dropped.",
            registry=registry,
        )
        self._crowded = Gauge(
            "coil_egress_eip_pods_over_policy_limit",
            "Pods of this node that more policies select than apply to a pod; what only the others are for is dropped.",
            registry=registry,
        )
        self.forward_dropped = Gauge(
            "coil_egress_eip_forward_dropped",
            "Directions and families in which packet filters of others drop packets of policies.",
            registry=registry,
        )
        self._repairs = Counter(
            "coil_egress_eip_repairs",
            "Repairs of kernel state that another program had changed: tables, addresses.",
            ["what"],
            registry=registry,
        )
        for what in ("tables", "addresses"):
            self._repairs.labels(what)

    @contextmanager
    def measured(self, operation: Operation) -> Iterator[None]:
        try:
            with self._seconds[operation].time():
                yield
        except Exception:
            self._failures[operation].inc()
            raise

    def set_addresses(self, count: int) -> None:
        self._addresses.set(count)

    def set_awaited(self, count: int) -> None:
        self._awaited.set(count)

    def set_excess(self, count: int) -> None:
        self._excess.set(count)

    def set_crowded(self, count: int) -> None:
        self._crowded.set(count)

    def set_peers(self, count: int) -> None:
        self._peers.set(count)

    def set_elements(self, counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            self._elements.labels(name).set(count)

    def count_repair(self, what: str) -> None:
        self._repairs.labels(what).inc()
