"""What people see of the egress of this node's pods: Events on the pods, and metrics. None of it waits or fails."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from coil.crd.builtin import PODS, Pod
from coil.egress.resolution import EgressProblem, ProblemReason
from coil.reconcile.event_recorder import EventSubject, Recorder
from coild.model.api_reader import NoAnswerError
from coild.model.attachment import EgressRefusedError, EgressUnresolvedError

REFUSED = "EgressRefused"
"""Reason of the Event about a pod whose tunnels the kernel refused."""

UNKNOWN = "EgressUnknown"
"""Reason of the Event about a pod whose Egress could not be looked up."""

POD_UNKNOWN = "PodUnknown"
"""Why an ADD failed: the pod's own object is not known, so there is no Event on it."""

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0)


class Occasion(Enum):
    """Why a pod's namespace is compared with what it is to have."""

    ADD = "add"
    FOLLOW = "follow"


class Consequence(Enum):
    """What a problem means to the pod as long as it lasts; the end of the Event's message."""

    NOT_STARTED = "the pod is not started until this is mended or the annotation is removed"
    BLOCKED = "what it is for is unreachable from the pod until this is mended or the annotation is removed"
    OWN_ADDRESS = "the pod uses its own address meanwhile (--egress-fail-open)"


class EgressMetrics:
    """One per registry. `clients`, `blocked` and `problems` are called at each scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._clients = Gauge(
            "coil_node_egress_clients", "Pods of the node that have a tunnel to an Egress.", registry=registry
        )
        self._blocked = Gauge(
            "coil_node_egress_blocked_pods",
            "Running pods of the node with unreachable destinations because no Egress currently serves these.",
            registry=registry,
        )
        self._problems = Gauge(
            "coil_node_egress_problems",
            "Problems with the Egresses that pods of the node name, by reason: "
            + ", ".join(reason.value for reason in ProblemReason),
            ["reason"],
            registry=registry,
        )
        self._refused_adds = Counter(
            "coil_node_egress_refused_adds",
            "ADDs that failed because the pod would have used its own address as source, by reason.",
            ["reason"],
            registry=registry,
        )
        self._seconds = Histogram(
            "coil_node_egress_sync_seconds",
            "Time to set up or compare a pod's tunnels, by occasion: "
            + ", ".join(occasion.value for occasion in Occasion),
            ["occasion"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._failures = Counter(
            "coil_node_egress_sync_failures",
            "Failures to set up a pod's tunnels or a router pod's sysctls in the kernel.",
            ["occasion"],
            registry=registry,
        )
        for occasion in Occasion:
            self._seconds.labels(occasion.value)
            self._failures.labels(occasion.value)
        for reason in (*(reason.value for reason in ProblemReason), REFUSED, UNKNOWN, POD_UNKNOWN):
            self._refused_adds.labels(reason)

    def observe(
        self,
        *,
        clients: Callable[[], int],
        blocked: Callable[[], int],
        problems: Callable[[], Mapping[ProblemReason, int]],
    ) -> None:
        """Where the numbers come from. Once."""
        self._clients.set_function(clients)
        self._blocked.set_function(blocked)
        for reason in ProblemReason:
            self._problems.labels(reason.value).set_function(partial(_number, problems, reason))

    def count_refused_add(self, reason: str) -> None:
        self._refused_adds.labels(reason).inc()

    @contextmanager
    def timed(self, occasion: Occasion) -> Iterator[None]:
        """Measure what is done inside; what raises counts as a failure, too."""
        with self._seconds.labels(occasion.value).time():
            try:
                yield
            except Exception:
                self._failures.labels(occasion.value).inc()
                raise


@dataclass(frozen=True, slots=True)
class EgressReport:
    """Writes the Events, and has the metrics."""

    recorder: Recorder
    metrics: EgressMetrics

    def problems(
        self,
        pod: Pod,
        problems: Iterable[EgressProblem],
        consequence: Consequence,
        *,
        before: Collection[EgressProblem],
    ) -> None:
        """Warn of what was not wrong `before`."""
        for problem in problems:
            if problem not in before:
                text = f"{problem.message}; {consequence.value}" if problem.unserved else problem.message
                self._warn(pod, problem.reason.value, text)

    def kernel_refused(self, pod: Pod, error: Exception, occasion: Occasion) -> EgressRefusedError:
        """Warn that the kernel did not do it; returns what to raise."""
        self._warn(pod, REFUSED, f"the kernel did not take the pod's egress: {error}")
        if occasion is Occasion.ADD:
            self.metrics.count_refused_add(REFUSED)
        return EgressRefusedError(str(error))

    def not_answered(self, pod: Pod, error: NoAnswerError) -> EgressUnresolvedError:
        """Warn that an ADD failed because nobody could look up the pod's Egress; returns what to raise."""
        self._warn(pod, UNKNOWN, f"{error}; the pod is not started before it is known")
        self.metrics.count_refused_add(UNKNOWN)
        return EgressUnresolvedError(str(error))

    def not_served(self, problems: Iterable[EgressProblem]) -> EgressUnresolvedError:
        """Count an ADD that failed for these; returns what to raise."""
        unserved = [problem for problem in problems if problem.unserved]
        self.metrics.count_refused_add(unserved[0].reason.value)
        return EgressUnresolvedError("; ".join(problem.message for problem in unserved))

    def _warn(self, pod: Pod, reason: str, message: str) -> None:
        self.recorder.warn(EventSubject.of(PODS, pod.metadata), reason=reason, message=message)


def _number(problems: Callable[[], Mapping[ProblemReason, int]], reason: ProblemReason) -> float:
    return problems().get(reason, 0)
