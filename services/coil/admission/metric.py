"""What an admission server tells Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class AdmissionMetrics:
    """One per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reviews = Counter(
            "coil_admission_reviews",
            "Reviews by path and answer: allowed, invalid, denied, unjudged, or error when there was none.",
            ["path", "answer"],
            registry=registry,
        )
        self.seconds = Histogram(
            "coil_admission_review_seconds",
            "How long an answer took, from the request's first line on.",
            ["path"],
            registry=registry,
            buckets=(0.005, 0.02, 0.1, 0.5, 2.0, 8.0),
        )
        self.certificate_end = Gauge(
            "coil_admission_certificate_end_timestamp_seconds",
            "When the certificate that is served ends, in seconds since 1970; 0 before there is one.",
            registry=registry,
        )
