"""What the informers of one process tell Prometheus. One `InformerMetrics` per registry."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class InformerMetrics:
    """The families, labelled with the plural of the kind that an informer follows."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lists = Counter(
            "informer_lists",
            "Lists completed: the first, and one whenever the place was lost.",
            ["resource"],
            registry=registry,
        )
        self.watches = Counter(
            "informer_watches", "Watches that the API server accepted.", ["resource"], registry=registry
        )
        self.events = Counter(
            "informer_events", "Watch events received, bookmarks included.", ["resource"], registry=registry
        )
        self.failures = Counter(
            "informer_failures",
            "Lists and watches that failed, by error class; EmptyWatchError is a watch that ended at once.",
            ["resource", "error"],
            registry=registry,
        )
        self.objects = Gauge("informer_objects", "Objects in the cache.", ["resource"], registry=registry)
