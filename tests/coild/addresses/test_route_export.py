"""The export table follows the blocks, and whoever must know so can wait for it."""

import asyncio
from collections.abc import AsyncIterator
from ipaddress import IPv4Network, IPv6Network
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from coil.kernel.family import IPNetwork
from coil.netlink.error import NetlinkError
from coil.podnet.plan import DEFAULT_POLICY
from coil.reconcile.backoff import Backoff
from coild.addresses.route_export import RouteExport
from coild.model.repairs import Repairs
from tests.coild.memory_network import Kernel, MemoryNetwork, Step
from tests.coild.scene import LOG, end, now
from tests.coild.virtual_loop import pass_turns

FIRST, SECOND = IPv4Network("10.1.0.0/31"), IPv6Network("fd01::/127")
THIRD = IPv4Network("10.1.0.2/31")


class Exporter:
    def __init__(self) -> None:
        self.kernel = Kernel()
        self.network = MemoryNetwork(self.kernel, self._gate)
        self.networks: list[IPNetwork] = [FIRST, SECOND]
        self.passes: list[float] = []
        self.seconds = 1.0
        self.failures = 0
        self.registry = CollectorRegistry()
        self.export = RouteExport(
            self.network,
            policy=DEFAULT_POLICY,
            backoff=Backoff(base=2, cap=8, jitter=0),
            rng=Random(0),
            repairs=Repairs(self.registry),
            log=LOG,
        )
        self.task = asyncio.create_task(self.export.run(lambda: list(self.networks)))

    async def _gate(self, step: Step) -> None:
        self.passes.append(now())
        await asyncio.sleep(self.seconds)
        if self.failures:
            self.failures -= 1
            raise NetlinkError("no")

    @property
    def repaired(self) -> float | None:
        return self.registry.get_sample_value("coil_node_repairs_total", {"of": "exported_routes"})

    @property
    def exported(self) -> set[IPNetwork]:
        return {route.destination for route in self.kernel.exported}


@pytest.fixture
async def exporter() -> AsyncIterator[Exporter]:
    exporter = Exporter()
    yield exporter
    await end([exporter.task])


async def test_the_first_pass_is_made_unasked(exporter: Exporter) -> None:
    await asyncio.sleep(1.5)
    assert exporter.exported == {FIRST, SECOND}
    for route in exporter.kernel.exported:
        assert (route.device, route.table, route.protocol) == ("lo", 119, 30)


async def test_what_others_remove_is_not_there_until_it_is_back_and_is_counted(exporter: Exporter) -> None:
    await asyncio.sleep(5)
    assert (exporter.export.routes, exporter.repaired) == (2, 0)
    [lost] = [route for route in exporter.kernel.exported if route.destination == FIRST]
    exporter.kernel.exported.remove(lost)
    for network in (FIRST, FIRST, IPv4Network("10.9.0.0/31")):
        exporter.export.unexported(network)
    assert exporter.export.routes == 1
    exporter.export.changed()
    await asyncio.sleep(5)
    assert (exporter.export.routes, exporter.repaired) == (2, 1)
    assert exporter.exported == {FIRST, SECOND}
    # What is exported for the first time was never removed, and what is withdrawn is no loss.
    exporter.networks = [SECOND, THIRD]
    exporter.export.changed()
    await asyncio.sleep(5)
    exporter.export.unexported(FIRST)
    assert (exporter.export.routes, exporter.repaired) == (2, 1)


async def test_many_changes_make_one_pass(exporter: Exporter) -> None:
    await asyncio.sleep(5)
    exporter.networks = [FIRST]
    for _ in range(10):
        exporter.export.changed()
    await asyncio.sleep(5)
    assert exporter.passes == [0, 5]
    assert exporter.exported == {FIRST}


async def test_flush_waits_for_a_pass_that_began_after_the_call(exporter: Exporter) -> None:
    await asyncio.sleep(0.5)  # the first pass is under way and has read the networks
    exporter.networks = [SECOND]
    await exporter.export.flush()
    assert now() == 2
    assert exporter.exported == {SECOND}


async def test_a_failed_pass_ends_no_flush_and_is_repeated_with_backoff(exporter: Exporter) -> None:
    await asyncio.sleep(5)
    exporter.failures = 3
    exporter.networks = [FIRST]
    await exporter.export.flush()
    assert exporter.passes[1:] == [5, 8, 13, 22]
    assert exporter.exported == {FIRST}
    exporter.failures = 1
    exporter.export.changed()
    await asyncio.sleep(5)
    assert exporter.passes[-1] - exporter.passes[-2] == 3, "after a success the backoff begins anew"


async def test_a_waiter_that_gives_up_harms_nobody(exporter: Exporter) -> None:
    first = asyncio.create_task(exporter.export.flush())
    second = asyncio.create_task(exporter.export.flush())
    await pass_turns()
    first.cancel()
    await second
    assert first.cancelled()
