"""What the leader has seen of EC2, for whoever shows it. Knows nothing of the AWS library: every replica has one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Network

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from structlog.typing import FilteringBoundLogger

from coil.eni.interface import SubnetId
from coil.eni.subnet_forecast import NEAR, seconds_until_dry
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject

RESERVED = 5
"""Addresses of each subnet that AWS keeps (VPC User Guide, "Subnet CIDR blocks")."""


def event_subject(namespace: str) -> EventSubject:
    """What Events about subnets and interfaces are about, for which there is no object: the controller's namespace."""
    return EventSubject(api_version="v1", kind="Namespace", name=namespace)


class SubnetLevel(StrEnum):
    UNKNOWN = "unknown"
    ROOM = "room"
    NEAR = "near"
    """It will be dry within an hour, if it goes on like this."""
    DRY = "dry"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetState:
    """A subnet at the last look. `interfaces` are the cluster's; `consumption` is in addresses a second, or unknown."""

    id: SubnetId
    zone: str
    ipv4: IPv4Network
    free: int
    interfaces: int
    tagged: bool
    consumption: float | None

    @property
    def total(self) -> int:
        return self.ipv4.num_addresses - RESERVED

    @property
    def dry_in(self) -> float | None:
        """Seconds; see `seconds_until_dry`."""
        return seconds_until_dry(self.free, self.consumption)

    @property
    def level(self) -> SubnetLevel:
        left = self.dry_in
        if left is None:
            return SubnetLevel.UNKNOWN
        if left == 0:
            return SubnetLevel.DRY
        return SubnetLevel.NEAR if left < NEAR else SubnetLevel.ROOM


class EniView:
    """The present term's picture; empty on a replica that stands by. One for each process."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.clear()

    def clear(self) -> None:
        """Nothing is known: the term has ended."""
        self.seen_at: datetime | None = None
        """When the subnets were last looked at."""
        self.subnets: tuple[SubnetState, ...] = ()
        self.unattached: int | None = None
        """Interfaces that the cluster's nodes have made and that are attached to nothing, orphans or not yet."""
        self.troubles: dict[str, str] = {}
        """Why a part of the work fails at present, by its name."""


class EniMetrics:
    """What has been done and what went wrong, since the process started."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.deletions = Counter(
            "coil_controller_eni_collected_interfaces",
            "Network interfaces without an instance that were deleted.",
            registry=registry,
        )
        self.failures = Counter(
            "coil_controller_eni_failures",
            "Rounds that EC2 or the metadata service ended, by part: connection, orphans, subnets.",
            ["part"],
            registry=registry,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the work of a term has from its process. `clock` is monotonic seconds, `now` the wall clock in UTC."""

    view: EniView
    metrics: EniMetrics
    recorder: Recorder
    subject: EventSubject
    """What Events are about."""
    clock: Callable[[], float]
    now: Callable[[], datetime]
    log: FilteringBoundLogger


class EniViewCollector(Collector):
    """The view at the moment of a scrape. Only the leader has series; those of an earlier leader end with its term."""

    def __init__(self, view: EniView, registry: CollectorRegistry) -> None:
        self._view = view
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        total, free, consumption, dry, unattached = families = self._families()
        for subnet in self._view.subnets:
            labels = [subnet.id, subnet.zone]
            total.add_metric(labels, subnet.total)
            free.add_metric(labels, subnet.free)
            if subnet.consumption is not None:
                consumption.add_metric(labels, subnet.consumption)
            if (left := subnet.dry_in) is not None:
                dry.add_metric(labels, left)
        if self._view.unattached is not None:
            unattached.add_metric([], self._view.unattached)
        yield from families

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, ...]:
        prefix, labels = "coil_controller_eni_subnet", ["subnet", "zone"]
        return (
            GaugeMetricFamily(f"{prefix}_addresses", "IPv4 addresses of the subnet.", labels=labels),
            GaugeMetricFamily(f"{prefix}_free_addresses", "Those that EC2 can still assign.", labels=labels),
            GaugeMetricFamily(
                f"{prefix}_consumption",
                "Addresses of the subnet that are taken per second, over the last half hour; negative if it fills up.",
                labels=labels,
            ),
            GaugeMetricFamily(
                f"{prefix}_dry_seconds",
                "Seconds until the subnet has no free address, at this consumption; +Inf if nothing is taken.",
                labels=labels,
            ),
            GaugeMetricFamily(
                "coil_controller_eni_unattached_interfaces",
                "Network interfaces of the cluster that no instance has, orphaned or being attached.",
            ),
        )
