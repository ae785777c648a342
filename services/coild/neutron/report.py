"""What people see of the node's ports: their metrics.

The gauge is read from the ledger at the moment of a scrape, so it cannot be stale.
"""

from collections.abc import Collection, Iterator

from prometheus_client import Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coild.neutron.bindings import BindOutcome
from coild.neutron.handoffs import WaitOutcome
from coild.neutron.ledger import PortLedger

_WAIT_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class NeutronMetrics:
    """How long pods waited for their ports, and how long plugging them in took."""

    def __init__(self) -> None:
        self.handoff = _wait_histogram(
            "coil_node_neutron_port_wait_seconds", "Time that pods waited until their annotations named a port"
        )
        self.active = _wait_histogram(
            "coil_node_neutron_active_wait_seconds",
            "Time that pods waited, once their ports were plugged in, until Neutron had reported these as ACTIVE",
        )
        self.binds = Histogram(
            "coil_node_neutron_bind_seconds",
            "Duration of plugging in a port (bind) or unplugging it (unbind), by the port's type and outcome: "
            + ", ".join(BindOutcome),
            ["type", "operation", "outcome"],
            registry=None,
            buckets=_WAIT_SECONDS,
        )

    def handoff_waited(self, seconds: float, outcome: WaitOutcome) -> None:
        """A `coild.neutron.handoffs.WaitObserver`."""
        self.handoff.labels(outcome).observe(seconds)

    def active_waited(self, seconds: float, outcome: WaitOutcome) -> None:
        """A `coild.neutron.handoffs.WaitObserver`."""
        self.active.labels(outcome).observe(seconds)

    def bound(self, type_: str, operation: str, outcome: BindOutcome, seconds: float) -> None:
        """A `coild.neutron.bindings.BindObserver`."""
        self.binds.labels(type_, operation, outcome).observe(seconds)

    def collectors(self) -> Collection[Collector]:
        return (self.handoff, self.active, self.binds)


def _wait_histogram(name: str, text: str) -> Histogram:
    made = Histogram(
        name, f"{text}, by outcome: {', '.join(WaitOutcome)}.", ["outcome"], registry=None, buckets=_WAIT_SECONDS
    )
    for outcome in WaitOutcome:
        made.labels(outcome)
    return made


class PortCollector(Collector):
    """The counts of the ledger."""

    def __init__(self, ledger: PortLedger) -> None:
        self._ledger = ledger

    def describe(self) -> Iterator[Metric]:
        # Without it, registration would scrape.
        yield _ports()

    def collect(self) -> Iterator[Metric]:
        held = self._ledger.held()
        bound = sum(holding.bound for holding in held)
        ports = _ports()
        ports.add_metric(["bound"], bound)
        ports.add_metric(["unbound"], len(held) - bound)
        ports.add_metric(["left"], len(self._ledger.left()))
        yield ports


def _ports() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "coil_node_neutron_ports",
        "Ports of this node, by state: bound (plugged in), unbound (of a pod that is coming or going), left (the pod "
        "is gone, and the port is still to be unplugged).",
        labels=["state"],
    )
