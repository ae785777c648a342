"""What others took away of the node's state and coild put back: counted by who puts it back, told by who watches."""

from collections.abc import Callable
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter


class Repair(StrEnum):
    """What it was; the values are those of a metric's label."""

    RULES = "rules"
    POD_ROUTES = "pod_routes"
    EXPORTED_ROUTES = "exported_routes"
    NODE_ROUTES = "node_routes"
    """Those to other nodes' blocks (`--route-sync`)."""
    FORWARDING = "forwarding"


class Repairs:
    """One per process. Each kind has a series from the start, so that an alert may rely on its zero."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counter = Counter(
            "coil_node_repairs",
            "Parts of the node's state that others removed and coild put back, by what it is.",
            ["of"],
            registry=registry,
        )
        for kind in Repair:
            self._counter.labels(kind.value)
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever something is counted."""
        self._listeners.append(listener)

    def count(self, kind: Repair, number: int) -> None:
        """So many of them are back. 0 is fine, and nothing."""
        if number:
            self._counter.labels(kind.value).inc(number)
            for listener in self._listeners:
                listener()
