"""What people are told of the egress of this node's pods: Events on the pods, and how long the kernel took."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from coil.crd.builtin import PODS, Pod
from coil.egress.resolution import EgressProblem
from coil.reconcile.event_recorder import EventSubject, Recorder
from coild.egress.metric import EgressMetrics
from coild.model.pod_egress import EgressRefusedError

REFUSED = "EgressRefused"
"""Reason of the Event about a pod whose tunnels the kernel did not take."""


@dataclass(frozen=True, slots=True)
class EgressReport:
    """None of this waits or fails."""

    recorder: Recorder
    metrics: EgressMetrics

    def tell(self, pod: Pod, problems: Iterable[EgressProblem], *, before: Collection[EgressProblem]) -> None:
        """Warn of what was not wrong `before`."""
        for problem in problems:
            if problem not in before:
                self._warn(pod, problem.reason.value, problem.message)

    def refused(self, pod: Pod, error: Exception) -> EgressRefusedError:
        """Warn that the kernel did not do it; returns what to raise."""
        self._warn(pod, REFUSED, f"the kernel did not take the pod's egress: {error}")
        return EgressRefusedError(str(error))

    def _warn(self, pod: Pod, reason: str, message: str) -> None:
        self.recorder.warn(EventSubject.of(PODS, pod.metadata), reason=reason, message=message)
