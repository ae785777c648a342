"""What the queues and controllers of one process tell Prometheus.

One `ReconcileMetrics` per registry, shared by every queue and controller of the process: each labels its
own series with its name. The names and meanings are those of client-go and controller-runtime, so that
existing dashboards and alerts show these processes as well.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)


class ReconcileMetrics:
    """The families. Creating two on one registry is an error of prometheus_client (duplicated series)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.depth = Gauge("workqueue_depth", "Keys that are waiting for a worker.", ["name"], registry=registry)
        self.adds = Counter("workqueue_adds", "Keys added to the queue.", ["name"], registry=registry)
        self.retries = Counter(
            "workqueue_retries", "Keys put back with a backoff after a failure.", ["name"], registry=registry
        )
        self.wait_seconds = Histogram(
            "workqueue_queue_duration_seconds",
            "Time that a key waited for a worker.",
            ["name"],
            registry=registry,
            buckets=_SECONDS,
        )
        self.work_seconds = Histogram(
            "workqueue_work_duration_seconds",
            "Time that a worker spent on a key.",
            ["name"],
            registry=registry,
            buckets=_SECONDS,
        )
        self.reconciles = Counter(
            "controller_runtime_reconcile",
            "Reconciles by result: success, requeue_after, error, timeout, cancelled.",
            ["controller", "result"],
            registry=registry,
        )
        self.reconcile_seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Length of a reconcile.",
            ["controller"],
            registry=registry,
            buckets=_SECONDS,
        )
        self.busy_workers = Gauge(
            "controller_runtime_active_workers",
            "Workers that are reconciling.",
            ["controller"],
            registry=registry,
        )
        self.leading = Gauge(
            "leader_election_master_status",
            "1 while this process is the leader, otherwise 0.",
            ["name"],
            registry=registry,
        )
