"""The main table follows the cluster's blocks and nodes; nothing but the API server's word withdraws a route."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from ipaddress import ip_network
from random import Random
from typing import Any, TypeVar

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.builtin import NODES
from coil.crd.names import FINALIZER, LABEL_NODE
from coil.crd.resource import HasMetadata
from coil.kernel.link import LinkName
from coil.kernel.route import Route, RouteChanges, RouteScope, diff_routes
from coil.kube.collection import Page
from coil.kube.errors import ApiError, GoneError, UnavailableError
from coil.kube.watch import WatchEvent
from coil.netlink.error import NetlinkError
from coil.reconcile.backoff import Backoff
from coil.reconcile.informer import Informer, InformerMetrics
from coild.routes.sync import ClusterRouting, RouteSync, RouteSyncMetrics
from tests.coild.block_granter import NODE
from tests.coild.memory_network import Kernel, MemoryNetwork
from tests.coild.scene import LOG, end, now
from tests.coild.virtual_loop import pass_turns
from tests.coild.watched_api import MemorySource, WatchedApi

T = TypeVar("T", bound=HasMetadata)

INTERVAL = 60.0
ETH0 = LinkName("eth0")
ON_LINK = Route(destination=ip_network("192.0.2.0/24"), device=ETH0, protocol=2, scope=RouteScope.LINK)


class MainTable(MemoryNetwork):
    """The kernel's side: its main table, a pass over which takes `seconds`, or fails."""

    def __init__(self) -> None:
        super().__init__(Kernel())
        self.others = [ON_LINK]
        self.routes: set[Route] = set()
        self.passes: list[float] = []
        self.changes: list[RouteChanges] = []
        self.seconds = 0.0
        self.failures = 0

    async def sync_planned_routes(
        self, *, table: int, protocol: int, plan: Callable[[list[Route]], Collection[Route]]
    ) -> RouteChanges:
        assert (table, protocol) == (254, 31)
        self.passes.append(now())
        wanted = plan(self.others)
        await asyncio.sleep(self.seconds)
        if self.failures:
            self.failures -= 1
            raise NetlinkError("no")
        changes = diff_routes(self.routes, wanted, self.others)
        self.routes = set(wanted)
        if changes:
            self.changes.append(changes)
        return changes


class BreakingSource(MemorySource[T]):
    """A source whose watch, or list, can be made to fail."""

    fault: ApiError | None = None
    """Every list fails with it, and every watch at once."""

    def interrupt(self, fault: ApiError) -> None:
        """End the watch that is open."""
        self._interruption.set_exception(fault)

    async def list_page(self, *, limit: int, continue_token: str) -> Page[T]:
        if self.fault is not None:
            raise self.fault
        return await super().list_page(limit=limit, continue_token=continue_token)

    @asynccontextmanager
    async def watch(
        self, *, resource_version: str, initial_events: bool = False
    ) -> AsyncIterator[AsyncIterable[list[WatchEvent[T]]]]:
        if self.fault is not None:
            raise self.fault
        self._interruption: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with super().watch(resource_version=resource_version) as batches:
            yield self._until_interrupted(batches)

    async def _until_interrupted(
        self, batches: AsyncIterable[list[WatchEvent[T]]]
    ) -> AsyncIterator[list[WatchEvent[T]]]:
        iterator = aiter(batches)
        while True:
            coming = asyncio.ensure_future(anext(iterator))
            try:
                waited: set[asyncio.Future[Any]] = {coming, self._interruption}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if self._interruption.done():
                    self._interruption.result()
                yield coming.result()
            finally:
                coming.cancel()


class Scene:
    """One node of a cluster with the nodes `here`, a and b."""

    def __init__(self) -> None:
        self.api = WatchedApi()
        self.table = MainTable()
        self.registry = CollectorRegistry()
        self.logged = LogCapture()
        for number, name in enumerate((NODE, "a", "b")):
            self.add_node(str(name), f"192.0.2.{10 + number}")
        self.block_source = BreakingSource(self.api, ADDRESS_BLOCKS)
        self.node_source = BreakingSource(self.api, NODES)
        self.pool_source = BreakingSource(self.api, ADDRESS_POOLS)
        self.api.create(ADDRESS_POOLS, {"metadata": {"name": "default"}, "spec": {"subnets": [{"ipv4": "10.0.0.0/8"}]}})
        metrics = InformerMetrics(CollectorRegistry())
        self.cluster = ClusterRouting(
            blocks=Informer(self.block_source, log=LOG, metrics=metrics, clock=now),
            nodes=Informer(self.node_source, log=LOG, metrics=metrics, clock=now),
            pools=Informer(self.pool_source, log=LOG, metrics=metrics, clock=now),
        )
        self.sync = RouteSync(
            self.table,
            self.cluster,
            own=NODE,
            protocol=31,
            backoff=Backoff(base=2, cap=8, jitter=0),
            rng=Random(0),
            metrics=RouteSyncMetrics(self.registry, node=NODE),
            log=structlog.wrap_logger(None, processors=[self.logged]),
        )
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        informers = (self.cluster.blocks, self.cluster.nodes, self.cluster.pools)
        work = (*(informer.run() for informer in informers), self.sync.run(INTERVAL))
        self.tasks = [asyncio.create_task(coroutine) for coroutine in work]

    def set_pool(self, subnet: str) -> None:
        """What blocks may be of."""
        self.api.patch(ADDRESS_POOLS, "default", {"spec": {"subnets": [{"ipv4": subnet}]}}, subresource="")

    def add_node(self, name: str, address: str) -> None:
        status = {"addresses": [{"type": "InternalIP", "address": address}]}
        self.api.create(NODES, {"metadata": {"name": name}, "status": status})

    def move_node(self, name: str, address: str) -> None:
        status = {"addresses": [{"type": "InternalIP", "address": address}]}
        self.api.patch(NODES, name, {"status": status}, subresource="status")

    def add_block(self, number: int, node: str) -> None:
        metadata = {"name": f"p-{number}", "labels": {LABEL_NODE: node}}
        self.api.create(ADDRESS_BLOCKS, {"metadata": metadata, "index": number, "ipv4": f"10.0.{number}.0/27"})

    def remove_block(self, number: int) -> None:
        self.api.delete(ADDRESS_BLOCKS, f"p-{number}")

    @property
    def routes(self) -> dict[str, str]:
        return {str(route.destination): str(route.gateway) for route in self.table.routes}

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await end(scene.tasks)


@pytest.fixture
async def running(scene: Scene) -> Scene:
    """With a block of each node, after the first pass."""
    for number, node in enumerate((str(NODE), "a", "b")):
        scene.add_block(number, node)
    scene.start()
    await asyncio.sleep(1)
    assert scene.routes == {"10.0.1.0/27": "192.0.2.11", "10.0.2.0/27": "192.0.2.12"}
    return scene


async def test_blocks_come_change_hands_and_go(running: Scene) -> None:
    running.add_block(3, "a")
    await asyncio.sleep(1)
    assert running.routes["10.0.3.0/27"] == "192.0.2.11"
    running.remove_block(3)
    running.add_block(3, "b")
    await asyncio.sleep(1)
    assert running.routes["10.0.3.0/27"] == "192.0.2.12"
    assert [len(changes.replaces) for changes in running.table.changes] == [0, 0, 1], "not withdrawn in between"
    running.remove_block(3)
    await asyncio.sleep(1)
    assert running.routes == {"10.0.1.0/27": "192.0.2.11", "10.0.2.0/27": "192.0.2.12"}


async def test_the_routes_of_a_node_that_is_deleted_go(running: Scene) -> None:
    running.api.delete(NODES, "b")
    await asyncio.sleep(1)
    assert running.routes == {"10.0.1.0/27": "192.0.2.11"}
    assert running.value("coil_router_troubled_networks", trouble="no_node") == 1
    running.add_node("b", "192.0.2.12")
    await asyncio.sleep(1)
    assert running.routes["10.0.2.0/27"] == "192.0.2.12"
    assert running.value("coil_router_troubled_networks", trouble="no_node") == 0


async def test_an_address_that_changes_is_one_replacement(running: Scene) -> None:
    running.move_node("b", "192.0.2.99")
    await asyncio.sleep(1)
    assert running.routes["10.0.2.0/27"] == "192.0.2.99"
    changes = running.table.changes[-1]
    assert (len(changes.replaces), changes.adds, changes.deletes) == (1, (), ())


async def test_a_block_is_routed_once_it_is_in_a_pool(running: Scene) -> None:
    running.set_pool("10.0.0.0/23")
    await asyncio.sleep(1)
    assert running.routes == {"10.0.1.0/27": "192.0.2.11"}
    assert running.value("coil_router_troubled_networks", trouble="no_pool") == 1
    running.set_pool("10.0.0.0/22")
    await asyncio.sleep(1)
    assert running.routes == {"10.0.1.0/27": "192.0.2.11", "10.0.2.0/27": "192.0.2.12"}
    assert running.value("coil_router_troubled_networks", trouble="no_pool") == 0


async def test_what_says_nothing_about_routes_makes_no_pass(running: Scene) -> None:
    passes = len(running.table.passes)
    running.api.patch(NODES, "a", {"metadata": {"annotations": {"beat": "1"}}}, subresource="")
    running.api.patch(ADDRESS_BLOCKS, "p-1", {"metadata": {"finalizers": [FINALIZER]}}, subresource="")
    running.api.patch(ADDRESS_POOLS, "default", {"metadata": {"finalizers": [FINALIZER]}}, subresource="")
    await asyncio.sleep(INTERVAL / 2)
    assert len(running.table.passes) == passes


async def test_changes_that_come_together_are_one_pass_and_a_long_pass_a_long_rest(running: Scene) -> None:
    running.table.seconds = 2.0
    began = now()
    for number in range(3, 20):
        running.add_block(number, "a")
        await asyncio.sleep(0.5)
    await asyncio.sleep(50)
    passes = [moment - began for moment in running.table.passes if moment >= began]
    assert len(passes) == 2
    assert passes[1] - passes[0] == pytest.approx(2.0 * 10)
    assert len(running.routes) == 19


async def test_a_link_that_took_its_routes_along_has_them_back_after_the_sweep(running: Scene) -> None:
    running.table.routes.clear()
    await asyncio.sleep(INTERVAL + 1)
    assert len(running.routes) == 2


async def test_nothing_is_withdrawn_before_everything_is_known(scene: Scene) -> None:
    scene.table.routes = {
        Route(destination=ip_network("10.0.7.0/27"), device=ETH0, gateway=None, table=254, protocol=31),
    }
    left_by_an_earlier_process = set(scene.table.routes)
    scene.node_source.fault = UnavailableError("no")
    scene.start()
    await asyncio.sleep(3600)
    assert scene.table.routes == left_by_an_earlier_process
    assert scene.table.passes == []
    assert "not listed yet" in (scene.sync.missing() or "")
    scene.node_source.fault = None
    await asyncio.sleep(60)
    assert scene.table.routes == set()
    assert scene.sync.missing() is None


async def test_an_outage_of_the_api_server_withdraws_nothing(running: Scene) -> None:
    for source in (running.block_source, running.node_source):
        source.fault = UnavailableError("no")
        source.interrupt(UnavailableError("no"))
    changes = len(running.table.changes)
    await asyncio.sleep(3600)
    assert len(running.table.passes) > 50, "the sweep goes on"
    assert len(running.table.changes) == changes
    assert len(running.routes) == 2


async def test_a_new_list_does_not_make_the_routes_flap(running: Scene) -> None:
    passes = len(running.table.passes)
    for source in (running.block_source, running.node_source):
        source.interrupt(GoneError("expired"))
    await asyncio.sleep(5)
    assert len(running.table.passes) == passes, "nothing was new"
    running.remove_block(2)
    running.add_block(4, "b")
    running.block_source.interrupt(GoneError("expired"))
    await asyncio.sleep(5)
    assert running.routes == {"10.0.1.0/27": "192.0.2.11", "10.0.4.0/27": "192.0.2.12"}


async def test_a_pass_that_fails_is_repeated_with_backoff(running: Scene) -> None:
    running.table.failures = 3
    began = now()
    running.add_block(3, "a")
    await asyncio.sleep(30)
    assert [moment - began for moment in running.table.passes if moment >= began] == pytest.approx([0, 2, 6, 14])
    assert running.routes["10.0.3.0/27"] == "192.0.2.11"
    assert running.value("coil_router_sync_failures_total") == 3
    assert running.value("coil_router_syncs_total", node=NODE) == 2
    assert running.value("coil_router_routes_synced", node=NODE) == 3


async def test_a_trouble_is_logged_when_it_changes_and_not_with_each_pass(running: Scene) -> None:
    running.add_node("far", "198.51.100.1")
    running.add_block(3, "far")
    await asyncio.sleep(10 * INTERVAL)
    running.remove_block(3)
    await asyncio.sleep(10 * INTERVAL)
    told = [entry for entry in running.logged.entries if entry["event"] == "networks in trouble"]
    assert [(entry["log_level"], entry["trouble"], entry["networks"]) for entry in told] == [
        ("warning", "not_on_link", 1),
        ("info", "not_on_link", 0),
    ]
    assert told[0]["examples"] == ["10.0.3.0/27 of block p-3 on far"]


async def test_withdrawing_takes_all_of_ours(running: Scene) -> None:
    await end(running.tasks)
    assert len(running.routes) == 2, "its end alone withdraws nothing"
    await running.sync.withdraw()
    assert running.routes == {}


async def test_both_caches_must_be_there_at_first(scene: Scene) -> None:
    scene.add_block(1, "a")
    scene.start()
    await pass_turns()
    assert scene.sync.missing() is None
    blocks: list[AddressBlock] = scene.cluster.blocks.items()
    assert len(blocks) == len(scene.routes) == 1
