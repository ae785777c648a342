"""What the leader knows of OpenStack, for the page. Every replica has a view; those that stand by see nothing."""

from dataclasses import dataclass

from coil_raven.namespace_network import NamespaceNetworks
from coil_raven.namespace_reconciler import Networks
from coil_raven.pod_ports import PodPorts
from coil_raven.service_reconciler import ServiceReconciler


@dataclass(frozen=True, slots=True, kw_only=True)
class TermView:
    """The memory of one term. `services` is None without load balancers."""

    networks: Networks
    maker: NamespaceNetworks
    ports: PodPorts
    services: ServiceReconciler | None


class RavenView:
    """One for each process; `term` is None while this replica does not lead."""

    def __init__(self) -> None:
        self.term: TermView | None = None

    def show(self, term: TermView) -> None:
        """A term has begun."""
        self.term = term

    def clear(self) -> None:
        """It has ended: what it knew is out of date. Idempotent."""
        self.term = None
