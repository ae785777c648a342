"""What the router pod's NAT has done so far, and how full its connection tracking is.

nftables is asked every few seconds by a task, in a worker's thread, and a scrape tells the last answer: a scrape, or a
hundred at once, never waits for the kernel.
"""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from structlog.typing import FilteringBoundLogger

from coil.egress.client_pod import EgressRef
from coil.egress.router_plan import NatCounter, NatCounterKind
from coil.kernel.family import Family
from coil.nat.router import RouterNetwork
from coil_egress_agent.egress.peer_sync import CALL_SECONDS, ROUTER_ERRORS

READ_SECONDS: Final = 5.0
CONNTRACK: Final = Path("/proc/sys/net/netfilter")
"""Of the namespace of whoever reads it. The files are there once something tracks connections."""

_PROTOCOLS: Final = {Family.IPV4: "ipv4", Family.IPV6: "ipv6"}


class NatReading:
    """Reads nftables' counters for `NatCollector`; run `run` in one task."""

    def __init__(self, router: RouterNetwork, *, log: FilteringBoundLogger) -> None:
        self.counters: tuple[NatCounter, ...] = ()
        """As they were read last; none before the first time."""
        self._router = router
        self._log = log

    async def run(self, is_set_up: asyncio.Event) -> None:
        """Read every READ_SECONDS until cancelled, from `is_set_up` on; failures leave what was read before."""
        await is_set_up.wait()
        trouble = ""
        while True:
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    self.counters = await self._router.counters()
                trouble = ""
            except ROUTER_ERRORS as error:
                report = self._log.debug if str(error) == trouble else self._log.warning
                trouble = str(error)
                report("counters not read", error=trouble)
            await asyncio.sleep(READ_SECONDS)


class NatCollector(Collector):
    """The names are Coil's. What the kernel has not told, or does not have, is not told."""

    def __init__(
        self, reading: NatReading, egress: EgressRef, registry: CollectorRegistry, *, conntrack: Path = CONNTRACK
    ) -> None:
        self._reading = reading
        # Of a pod without the host's network, Kubernetes makes the name the host name.
        self._labels = [egress.namespace, socket.gethostname(), egress.name]
        self._conntrack = conntrack
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        # Without it, registration would scrape.
        yield from _conntrack_families().values()
        yield from _counter_families().values()

    def collect(self) -> Iterator[Metric]:
        conntrack = _conntrack_families()
        for file, family in conntrack.items():
            if (entries := _read_number(self._conntrack / file)) is not None:
                family.add_metric(self._labels, entries)
        counted = _counter_families()
        for counter in self._reading.counters:
            protocol = [*self._labels, _PROTOCOLS[counter.family]]
            counted[counter.kind, "packets"].add_metric(protocol, counter.packets)
            counted[counter.kind, "bytes"].add_metric(protocol, counter.bytes)
        yield from conntrack.values()
        yield from counted.values()


def _read_number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _conntrack_families() -> dict[str, GaugeMetricFamily]:
    return {
        "nf_conntrack_count": GaugeMetricFamily(
            "coil_egress_nf_conntrack_entries_count",
            "Connections tracked in the router pod.",
            labels=["namespace", "pod", "egress"],
        ),
        "nf_conntrack_max": GaugeMetricFamily(
            "coil_egress_nf_conntrack_entries_limit",
            "Maximum number of connections tracked in one namespace, beyond which new ones are dropped.",
            labels=["namespace", "pod", "egress"],
        ),
    }


def _counter_families() -> dict[tuple[NatCounterKind, str], CounterMetricFamily]:
    meanings = {
        NatCounterKind.MASQUERADED: "of connections masqueraded with the router pod's address",
        NatCounterKind.INVALID: "dropped because they do not belong to a known connection",
        NatCounterKind.UNKNOWN_CLIENT: "out of tunnels dropped because their source is not the tunnel's client",
        NatCounterKind.OTHER_DESTINATION: "of clients dropped because the Egress is not for their destination",
    }
    return {
        (kind, unit): CounterMetricFamily(
            f"coil_egress_nftables_{kind.value}_{unit}",
            f"{unit.capitalize()} {meaning}.",
            labels=["namespace", "pod", "egress", "protocol"],
        )
        for kind, meaning in meanings.items()
        for unit in ("packets", "bytes")
    }
