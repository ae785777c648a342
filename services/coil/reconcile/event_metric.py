"""What the event recorder of a process tells Prometheus. One `EventMetrics` per registry."""

from prometheus_client import CollectorRegistry, Counter


class EventMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.writes = Counter(
            "event_recorder_writes",
            "Events written, by verb: create is a new one, patch a higher count of one that exists.",
            ["verb"],
            registry=registry,
        )
        self.drops = Counter(
            "event_recorder_drops",
            "Occurrences that no Event tells of, by reason: full, rate_limited, refused, given_up.",
            ["reason"],
            registry=registry,
        )
