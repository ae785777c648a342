"""What the agent tells Prometheus of its work on the kernel, and of the clients it works for."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coil.egress.annotation import EgressRef
from coil.kernel.tunnel import tunnel_name
from coil_egress_agent.egress.client_index import ClientIndex

_SECONDS = (0.002, 0.01, 0.05, 0.2, 1.0, 5.0, 30.0)


class Operation(StrEnum):
    """What the kernel is asked for."""

    SET_UP = "set_up"
    READ = "read"
    ADD = "add"
    REMOVE = "remove"


class PeerMetrics:
    """One per registry. Every operation has its series from the start, so that an alert may rely on its zero."""

    def __init__(self, registry: CollectorRegistry) -> None:
        operations = ", ".join(Operation)
        seconds = Histogram(
            "coil_egress_kernel_seconds",
            f"Length of a call of the kernel, however many peers it was for, by operation: {operations}.",
            ["operation"],
            registry=registry,
            buckets=_SECONDS,
        )
        failures = Counter(
            "coil_egress_kernel_failures",
            "Calls that the kernel refused, wholly or for one of their peers.",
            ["operation"],
            registry=registry,
        )
        self._seconds = {operation: seconds.labels(operation.value) for operation in Operation}
        self._failures = {operation: failures.labels(operation.value) for operation in Operation}
        self._peers = Gauge("coil_egress_peers", "Addresses of clients that have a tunnel.", registry=registry)
        self._refused = Gauge(
            "coil_egress_refused_peers",
            "Addresses for which the kernel has refused to make or remove a tunnel; they are tried again.",
            registry=registry,
        )

    @contextmanager
    def measured(self, operation: Operation) -> Iterator[None]:
        """Time the block; count it as failed if it raises."""
        with self._failures[operation].count_exceptions(), self._seconds[operation].time():
            yield

    def set_peers(self, peers: int, *, refused: int) -> None:
        self._peers.set(peers)
        self._refused.set(refused)


class ClientCollector(Collector):
    """Coil's own two families, read from the book at the moment of a scrape."""

    def __init__(self, book: ClientIndex, egress: EgressRef, registry: CollectorRegistry) -> None:
        self._book = book
        self._egress = egress
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        # Without it, registration would scrape.
        return iter(_families())

    def collect(self) -> Iterator[Metric]:
        count, info = _families()
        labels = [self._egress.namespace, self._egress.name]
        count.add_metric(labels, len(self._book.pods))
        for pod in self._book.pods:
            for address in pod.addresses:
                info.add_metric([*labels, pod.namespace, pod.name, str(address), tunnel_name(address)], 1)
        return iter((count, info))


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(
            "coil_egress_client_pod_count",
            "Pods that are annotated for this Egress, and may use it.",
            labels=["namespace", "egress"],
        ),
        GaugeMetricFamily(
            "coil_egress_client_pod_info",
            "1 for each address of a client; namespace and egress are the Egress's.",
            labels=["namespace", "egress", "pod_namespace", "pod", "pod_ip", "interface"],
        ),
    )
