"""What coild tells Prometheus of the clients of egress NAT on its node."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from coil.egress.resolution import ProblemReason

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0)


class Occasion(Enum):
    """Why a pod's namespace is compared with what it is to have."""

    ADD = "add"
    FOLLOW = "follow"


class EgressMetrics:
    """One per registry. `clients` and `problems` are asked at each scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._clients = Gauge(
            "coil_node_egress_clients", "Pods of the node that have a tunnel to an Egress.", registry=registry
        )
        self._problems = Gauge(
            "coil_node_egress_problems",
            "What is wrong with Egresses that pods of the node name, by reason: "
            + ", ".join(reason.value for reason in ProblemReason),
            ["reason"],
            registry=registry,
        )
        self._seconds = Histogram(
            "coil_node_egress_sync_seconds",
            "How long it took to give a pod its tunnels or to compare them, by occasion: "
            + ", ".join(occasion.value for occasion in Occasion),
            ["occasion"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._failures = Counter(
            "coil_node_egress_sync_failures",
            "Times that the kernel did not take a pod's tunnels, or a router pod's sysctls.",
            ["occasion"],
            registry=registry,
        )
        for occasion in Occasion:
            self._seconds.labels(occasion.value)
            self._failures.labels(occasion.value)

    def observe(self, clients: Callable[[], int], problems: Callable[[], Mapping[ProblemReason, int]]) -> None:
        """Where the numbers come from. Once."""
        self._clients.set_function(clients)
        for reason in ProblemReason:
            self._problems.labels(reason.value).set_function(partial(_number, problems, reason))

    @contextmanager
    def timed(self, occasion: Occasion) -> Iterator[None]:
        """Measure what is done inside; what raises counts as a failure, too."""
        with self._seconds.labels(occasion.value).time():
            try:
                yield
            except Exception:
                self._failures.labels(occasion.value).inc()
                raise


def _number(problems: Callable[[], Mapping[ProblemReason, int]], reason: ProblemReason) -> float:
    return problems().get(reason, 0)
