"""The node's gauges follow the ledger, and waits are told by pool and outcome, in a bounded number of series."""

import pytest
from prometheus_client import CollectorRegistry

from coil.crd.names import PoolName
from coil.ipam.occupancy import Tally
from coild.addresses.block_store import BlockStore
from coild.addresses.pool_demand import WaitOutcome
from coild.addresses.report import MAX_POOLS, OTHER_POOLS, WaitMetrics
from coild.addresses.route_export import RouteExport
from tests.coild.scene import Coild, advance

DEFAULT = PoolName("default")


def addresses(registry: CollectorRegistry, pool: str = DEFAULT) -> tuple[float | None, ...]:
    """Allocated, cooling, free."""
    return tuple(
        registry.get_sample_value("coil_node_addresses", {"pool": pool, "state": state})
        for state in ("allocated", "cooling", "free")
    )


async def test_the_gauges_are_those_of_the_moment(coild: Coild, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = coild.registry
    assert addresses(registry) == (None, None, None)
    counts = {DEFAULT: Tally(blocks=2, allocated=3, cooling=1, free=2**70)}
    monkeypatch.setattr(BlockStore, "tallies", lambda _store: counts)
    monkeypatch.setattr(RouteExport, "routes", 4)
    coild.export.failures = 1
    assert addresses(registry) == (3, 1, 2**70)
    assert registry.get_sample_value("coil_node_blocks", {"pool": DEFAULT}) == 2
    assert registry.get_sample_value("coil_node_exported_routes") == 4
    assert registry.get_sample_value("coil_node_export_failures_total") == 1
    counts.clear()
    assert addresses(registry) == (None, None, None)


async def test_pods_come_and_go_in_the_gauges(coild: Coild) -> None:
    registry = coild.registry
    await coild.add("a")
    await coild.add("b")
    await coild.add("c")
    assert addresses(registry) == (3, 0, 1)
    assert registry.get_sample_value("coil_node_blocks", {"pool": DEFAULT}) == 2
    await coild.delete("c")
    assert addresses(registry) == (2, 1, 1)
    await advance(1)
    assert registry.get_sample_value("coil_node_exported_routes") == 4, "two blocks, two families"


def wait_count(registry: CollectorRegistry, pool: str, outcome: str) -> float | None:
    return registry.get_sample_value("coil_node_address_wait_seconds_count", {"pool": pool, "outcome": outcome})


@pytest.mark.parametrize("outcome", WaitOutcome)
def test_a_wait_is_told_by_pool_and_outcome(outcome: WaitOutcome) -> None:
    registry = CollectorRegistry()
    metrics = WaitMetrics()
    registry.register(metrics.seconds)
    metrics.waited(DEFAULT, 0.3, outcome)
    label = outcome.value.replace(" ", "_")
    assert wait_count(registry, DEFAULT, label) == 1
    name = "coil_node_address_wait_seconds_sum"
    assert registry.get_sample_value(name, {"pool": DEFAULT, "outcome": label}) == pytest.approx(0.3)


def test_whatever_annotations_name_the_series_are_bounded() -> None:
    registry = CollectorRegistry()
    metrics = WaitMetrics()
    registry.register(metrics.seconds)
    for number in range(3 * MAX_POOLS):
        metrics.waited(PoolName(f"pool-{number}"), 10.0, WaitOutcome.REFUSED)
    metrics.waited(PoolName("pool-0"), 0.1, WaitOutcome.SERVED)
    assert wait_count(registry, "pool-0", "served") == 1
    assert wait_count(registry, OTHER_POOLS, "refused") == 2 * MAX_POOLS
    [family] = registry.collect()
    assert len({sample.labels["pool"] for sample in family.samples}) == MAX_POOLS + 1
