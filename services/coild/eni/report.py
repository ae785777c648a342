"""What people see of the node's interfaces: their metrics, and their part of the inspection page.

The gauges are read from the store at the moment of a scrape, so they cannot be stale. Calls to EC2 are counted by
`coil.aws.call_metrics`.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from prometheus_client import Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coil.eni.interface import InterfaceId
from coil.eni.ledger import Allocation, InterfaceUse
from coil.kernel.family import IPNetwork
from coil.page import eni_document as page
from coil.page.node_document import AddressCounts, AddressState
from coild.eni.store import EniStore, WaitOutcome

_WAIT_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class WaitMetrics:
    """How long pods waited for an address."""

    def __init__(self) -> None:
        self.seconds = Histogram(
            "coil_node_eni_address_wait_seconds",
            "Time that pods waited if no interface had a free address past its cooldown, by outcome: "
            + ", ".join(WaitOutcome),
            ["outcome"],
            registry=None,
            buckets=_WAIT_SECONDS,
        )
        for outcome in WaitOutcome:
            self.seconds.labels(outcome)

    def waited(self, seconds: float, outcome: WaitOutcome) -> None:
        """A `coild.eni.store.WaitObserver`."""
        self.seconds.labels(outcome).observe(seconds)


class EniCollector(Collector):
    """The counts of the store."""

    def __init__(self, store: EniStore) -> None:
        self._store = store

    def describe(self) -> Iterator[Metric]:
        # Without it, registration would scrape.
        return iter(_families().values())

    def collect(self) -> Iterator[Metric]:
        families = _families()
        store = self._store
        uses = store.uses()
        counts = sum(map(_count, uses), start=AddressCounts())
        for state, count in (
            ("allocated", counts.allocated),
            ("cooling", counts.cooling),
            ("free", counts.free),
            ("withheld", counts.withheld),
        ):
            families["addresses"].add_metric([state], count)
        families["total"].add_metric([], counts.total)
        families["assigned"].add_metric([], counts.allocated)
        families["interfaces"].add_metric([], len(uses))
        families["waiting"].add_metric([], store.waiting(store.version))
        families["lost"].add_metric([], len(store.lost()))
        families["available"].add_metric([], store.obstacle is None)
        if store.ip_max is not None:
            families["ip_max"].add_metric([], store.ip_max)
        if store.pods_limit is not None:
            families["pods_limit"].add_metric([], store.pods_limit)
        if (checkpoint := store.journal.checkpoint) is not None:
            families["max"].add_metric([], checkpoint.limits.interfaces)
        return iter(families.values())


def _families() -> dict[str, GaugeMetricFamily]:
    return {
        "addresses": GaugeMetricFamily(
            "coil_node_eni_addresses",
            "Addresses of the node's interfaces that pods may get, by state: allocated, cooling, free, withheld (of an "
            "interface whose link is not up, or on their way back to EC2).",
            labels=["state"],
        ),
        "total": GaugeMetricFamily(
            "coil_node_eni_total_ip_addresses", "Addresses of the node's interfaces that pods may get."
        ),
        "assigned": GaugeMetricFamily("coil_node_eni_assigned_ip_addresses", "Addresses that pods have."),
        "interfaces": GaugeMetricFamily("coil_node_eni_allocated", "Interfaces that are attached to the node."),
        "max": GaugeMetricFamily("coil_node_eni_max", "Interfaces that EC2 allows the instance's type."),
        "ip_max": GaugeMetricFamily(
            "coil_node_eni_ip_max",
            "Addresses for pods that the node can have, beside what others have attached.",
        ),
        "pods_limit": GaugeMetricFamily(
            "coil_node_eni_allocatable_pods",
            "Pods that the Node allows (status.allocatable.pods).",
        ),
        "waiting": GaugeMetricFamily("coil_node_eni_waiting_pods", "Pods that wait for an address."),
        "lost": GaugeMetricFamily(
            "coil_node_eni_lost_addresses", "Addresses of pods that EC2 does not have for this node any more."
        ),
        "available": GaugeMetricFamily(
            "coil_node_eni_available", "1 while a new pod would get an address, now or soon; otherwise 0."
        ),
    }


def describe_node(store: EniStore, node: str, *, now: datetime) -> page.EniNodeDocument:
    """The node's document: all of it at once, as there are no more addresses out than pods here."""
    places = {allocation.address: allocation for allocation in store.held()}
    cooldowns = {address: now + timedelta(seconds=left) for address, left in store.cooldowns().items()}
    lost = store.lost()
    uses = store.uses()
    used: dict[InterfaceId, list[page.EniAddressDocument]] = {use.interface.id: [] for use in uses}
    busy: set[IPNetwork] = set()
    for address in sorted({*places, *cooldowns}, key=lambda each: (each.version, int(each))):
        if (place := store.place(address)) is None:
            continue
        interface, network = place
        busy.add(network)
        allocation = places.get(address)
        if allocation is not None:
            used[interface].append(_describe_held(store, allocation))
        else:
            state, until = AddressState.COOLING, cooldowns[address]
            used[interface].append(page.EniAddressDocument(address=address, state=state, until=until))
    return page.EniNodeDocument(
        node=node,
        at=now,
        addresses=sum(map(_count, uses), start=AddressCounts()),
        shortage=store.shortage,
        waiting=store.waiting(store.version),
        interfaces=tuple(_describe_interface(use, busy, used[use.interface.id]) for use in uses),
        lost=tuple(_describe_held(store, allocation) for allocation in lost.values()),
    )


def _describe_interface(
    use: InterfaceUse, busy: set[IPNetwork], used: list[page.EniAddressDocument]
) -> page.InterfaceDocument:
    interface = use.interface
    order = sorted(interface.ranges, key=lambda each: (each.version, each.prefixlen, int(each.network_address)))
    return page.InterfaceDocument(
        id=interface.id,
        mac=interface.mac,
        device_number=interface.device_number,
        subnet=interface.subnet,
        primary=interface.primary,
        up=use.up,
        addresses=_count(use),
        ranges=tuple(
            page.RangeDocument(network=network, withdrawn=network not in busy and network not in use.idle)
            for network in order
        ),
        used=tuple(used),
    )


def _describe_held(store: EniStore, allocation: Allocation) -> page.EniAddressDocument:
    holder = store.journal.holder(allocation.key)
    return page.EniAddressDocument(
        address=allocation.address,
        state=AddressState.ALLOCATED,
        namespace=holder.pod.namespace if holder.pod else None,
        pod=holder.pod.name if holder.pod else None,
        container=allocation.key.container_id,
        interface=allocation.key.ifname,
        since=holder.since,
    )


def _count(use: InterfaceUse) -> AddressCounts:
    free = use.free if use.up else 0
    return AddressCounts(
        total=use.total,
        allocated=use.held,
        cooling=use.cooling,
        free=free,
        withheld=use.total - use.held - use.cooling - free,
    )
