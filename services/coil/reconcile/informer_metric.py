"""What the informers of one process tell Prometheus. One `InformerMetrics` per registry."""

from copy import copy

from prometheus_client import CollectorRegistry, Counter, Gauge


class InformerMetrics:
    """The families, labelled with the plural of the kind that an informer follows.

    Where several informers of a process follow one kind, `named` gives the others their label.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.name = ""
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

    def named(self, name: str) -> "InformerMetrics":
        """The same families for one informer, which is called `name` there and in the log."""
        twin = copy(self)
        twin.name = name
        return twin
