"""How long EC2 takes, and what it refuses."""

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

_SECONDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)


class Ec2CallMetrics:
    """One per process. Labels take few values: the calls are those of `coil.aws.ec2`, the codes EC2's own words."""

    def __init__(self) -> None:
        self.seconds = Histogram(
            "coil_ec2_call_duration_seconds",
            "Duration of a call to EC2, without the time that it waited for its turn.",
            ["call"],
            registry=None,
            buckets=_SECONDS,
        )
        self.errors = Counter(
            "coil_ec2_errors",
            "Calls that EC2 refused or did not answer, by its error code.",
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
