"""How long OpenStack takes, and what it refuses."""

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

_SECONDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class CallMetrics:
    """One per process. Labels take few values: calls are those of `coil.openstack`, codes the types of errors."""

    def __init__(self) -> None:
        self.seconds = Histogram(
            "coil_openstack_call_duration_seconds",
            "Duration of a call to OpenStack, with the time that it waited for its turn.",
            ["call"],
            registry=None,
            buckets=_SECONDS,
        )
        self.errors = Counter(
            "coil_openstack_errors",
            "Calls that OpenStack refused or did not answer, by the type of its error.",
            ["call", "code"],
            registry=None,
        )

    def collectors(self) -> tuple[Collector, ...]:
        """To be registered."""
        return self.seconds, self.errors

    def observe(self, call: str, seconds: float, *, code: str | None) -> None:
        """A call is over; `code` is that of its error."""
        self.seconds.labels(call).observe(seconds)
        if code is not None:
            self.errors.labels(call, code).inc()
