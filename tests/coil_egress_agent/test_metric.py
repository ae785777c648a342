"""What a scrape tells of clients and NAT."""

import asyncio
import socket
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import LogCapture

from coil.crd.egress_client_slice import EgressClientSlice
from coil.crd.meta import ObjectMeta
from coil_egress_agent.egress.client_index import ClientCollector, ClientIndex
from coil_egress_agent.egress.nat_metric import READ_SECONDS, NatCollector, NatReading
from coil_egress_agent.egress.peer_sync import Operation, PeerMetrics
from tests.coil.reconcile.virtual_time import run_virtual
from tests.coil_egress_agent.agent_scene import OWN
from tests.coil_egress_agent.memory_router import Fault, MemoryRouter
from tests.coil_egress_agent.slice_world import EGRESS

LABELS = 'egress="nat",namespace="internet"'
POD = f'pod="{socket.gethostname()}"'


def scrape(registry: CollectorRegistry) -> set[str]:
    return {line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")}


def make_slice(node: str, *addresses: str, pods: int) -> EgressClientSlice:
    metadata = ObjectMeta(name=f"nat-{node}", namespace="internet", uid=node)
    return EgressClientSlice(metadata=metadata, node_name=node, addresses=addresses, pods=pods)


def test_clients_are_counted() -> None:
    registry = CollectorRegistry()
    index = ClientIndex(OWN)
    ClientCollector(index, EGRESS, registry)
    assert scrape(registry) == {f"coil_egress_client_pod_count{{{LABELS}}} 0.0"}
    first, second = make_slice("a", "10.20.30.40", "fd00::1", pods=1), make_slice("b", "10.20.30.41", pods=1)
    index.observe(None, first)
    index.observe(None, second)
    assert scrape(registry) == {f"coil_egress_client_pod_count{{{LABELS}}} 2.0"}
    index.observe(second, make_slice("b", "10.20.30.41", "10.20.30.42", pods=2))
    assert scrape(registry) == {f"coil_egress_client_pod_count{{{LABELS}}} 3.0"}
    index.observe(first, None)
    assert scrape(registry) == {f"coil_egress_client_pod_count{{{LABELS}}} 2.0"}


def test_operations_are_counted_from_zero() -> None:
    registry = CollectorRegistry()
    metrics = PeerMetrics(registry)
    for operation in Operation:
        assert f'coil_egress_kernel_failures_total{{operation="{operation.value}"}} 0.0' in scrape(registry)
    try:
        with metrics.measured(Operation.ADD):
            raise OSError
    except OSError:
        pass
    told = scrape(registry)
    assert 'coil_egress_kernel_failures_total{operation="add"} 1.0' in told
    assert 'coil_egress_kernel_seconds_count{operation="add"} 1.0' in told


def test_connection_tracking_is_told_where_there_is_any(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    reading = NatReading(MemoryRouter(), log=structlog.wrap_logger(None, processors=[LogCapture()]))
    NatCollector(reading, EGRESS, registry, conntrack=tmp_path)
    assert scrape(registry) == set()
    (tmp_path / "nf_conntrack_count").write_text("17\n")
    (tmp_path / "nf_conntrack_max").write_text("65536\n")
    assert scrape(registry) == {
        f"coil_egress_nf_conntrack_entries_count{{{LABELS},{POD}}} 17.0",
        f"coil_egress_nf_conntrack_entries_limit{{{LABELS},{POD}}} 65536.0",
    }


def test_counters_are_those_of_the_last_reading(tmp_path: Path) -> None:
    async def main() -> None:
        registry = CollectorRegistry()
        logged = LogCapture()
        router = MemoryRouter()
        reading = NatReading(router, log=structlog.wrap_logger(None, processors=[logged]))
        NatCollector(reading, EGRESS, registry, conntrack=tmp_path)
        is_set_up = asyncio.Event()
        task = asyncio.create_task(reading.run(is_set_up))
        await asyncio.sleep(3 * READ_SECONDS)
        assert router.calls == []
        is_set_up.set()
        await asyncio.sleep(1)
        told = scrape(registry)
        assert len(told) == 16
        protocol = f'{LABELS},{POD},protocol="ipv6"'
        assert f"coil_egress_nftables_masqueraded_packets_total{{{protocol}}} 10.0" in told
        assert f"coil_egress_nftables_invalid_bytes_total{{{protocol}}} 1000.0" in told
        router.faults.extend([Fault.REFUSED] * 3)
        await asyncio.sleep(3 * READ_SECONDS)
        assert scrape(registry) == told
        assert [entry["log_level"] for entry in logged.entries] == ["warning", "debug", "debug"]
        for _ in range(100):
            scrape(registry)
        assert len(router.calls) == 4, "a scrape asks nobody"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(main)
