"""What people see of the pools: their metrics, and their part of the node's inspection page.

The metrics are those of this node's addresses and blocks, of its exported routes, and of pods that had to wait for an
address. The gauges are read from the block store at the moment of a scrape, so they cannot be stale. Calls are
measured by `coil.cnirpc.call_gate`, routes to other nodes by `coild.routes.sync`.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Protocol

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coil.crd.names import BlockName, PoolName
from coil.ipam.block import Block, BlockUse
from coil.ipam.occupancy import AddressState, AddressUse, AttachmentKey, BlockOccupancy
from coil.page import node_document as page
from coild.addresses.block_store import BlockStore
from coild.addresses.journal import FormerHolder
from coild.addresses.pool_demand import WaitOutcome
from coild.addresses.route_export import RouteExport
from coild.model.attachment import UNKNOWN_HOLDER, Holder

MAX_POOLS = 100
"""Pools by which waits are labelled. A namespace's annotation may name any, and each makes new series."""

OTHER_POOLS = "(other)"

_WAIT_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class PoolCollector(Collector):
    """Pools without a block on this node have no series."""

    def __init__(self, store: BlockStore, export: RouteExport) -> None:
        self._store = store
        self._export = export

    def describe(self) -> Iterator[Metric]:
        # Without it, registration would scrape.
        return iter(_families())

    def collect(self) -> Iterator[Metric]:
        addresses, blocks, routes, failures = _families()
        for pool, tally in self._store.tallies().items():
            blocks.add_metric([pool], tally.blocks)
            for state, count in (
                (AddressState.ALLOCATED, tally.allocated),
                (AddressState.COOLING, tally.cooling),
                (AddressState.FREE, tally.free),
            ):
                addresses.add_metric([pool, state.value], count)
        routes.add_metric([], self._export.routes)
        failures.add_metric([], self._export.failures)
        return iter((addresses, blocks, routes, failures))


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily, CounterMetricFamily]:
    states = ", ".join(state.value for state in AddressState)
    return (
        GaugeMetricFamily(
            "coil_node_addresses",
            f"Addresses in the node's blocks of the pool, by state: {states}. A dual-stack pair counts once.",
            labels=["pool", "state"],
        ),
        GaugeMetricFamily("coil_node_blocks", "Blocks of the pool that the node owns.", labels=["pool"]),
        GaugeMetricFamily("coil_node_exported_routes", "Routes in the export table."),
        CounterMetricFamily(
            "coil_node_export_failures", "Syncs of the export table in which the kernel rejected a change."
        ),
    )


class WaitMetrics:
    """How long pods waited for an address."""

    def __init__(self) -> None:
        self.seconds = Histogram(
            "coil_node_address_wait_seconds",
            "Time that pods waited if the node had no free address past its cooldown, by outcome: "
            + ", ".join(_label(outcome) for outcome in WaitOutcome),
            ["pool", "outcome"],
            registry=None,
            buckets=_WAIT_SECONDS,
        )
        self._pools: set[PoolName] = set()

    def waited(self, pool: PoolName, seconds: float, outcome: WaitOutcome) -> None:
        """A `coild.addresses.pool_demand.WaitObserver`."""
        if pool not in self._pools and len(self._pools) < MAX_POOLS:
            self._pools.add(pool)
        known = pool if pool in self._pools else OTHER_POOLS
        self.seconds.labels(known, _label(outcome)).observe(seconds)


def _label(outcome: WaitOutcome) -> str:
    return outcome.value.replace(" ", "_")


_STATES = {
    AddressState.ALLOCATED: page.AddressState.ALLOCATED,
    AddressState.COOLING: page.AddressState.COOLING,
}
_USES = {
    BlockUse.OPEN: page.BlockUse.OPEN,
    BlockUse.RESERVED: page.BlockUse.RESERVED,
    BlockUse.DRAINING: page.BlockUse.DRAINING,
    BlockUse.OCCUPIED: page.BlockUse.OCCUPIED,
}


class Holders(Protocol):
    """Who has an address, and who had it. Implemented by `coild.addresses.journal`."""

    def holder(self, key: AttachmentKey) -> Holder:
        """Which pod the attachment is, and since when."""
        ...

    def former(self, block: BlockName) -> dict[int, FormerHolder]:
        """Who had addresses of the block before, by slot."""
        ...


def describe_pools(blocks: Iterable[BlockOccupancy], holders: Holders) -> tuple[page.PoolDocument, ...]:
    """The pools' documents: the ledger, with the pods' names out of the journal. Pure. `blocks` by pool."""
    return tuple(
        _describe_pool(pool, [_describe_block(occupancy, holders) for occupancy in members])
        for pool, members in groupby(blocks, key=lambda occupancy: occupancy.block.pool)
    )


def _describe_pool(name: str, blocks: list[page.BlockDocument]) -> page.PoolDocument:
    return page.PoolDocument(
        name=name,
        addresses=sum((block.addresses for block in blocks), start=page.AddressCounts()),
        blocks=tuple(blocks),
    )


def _describe_block(occupancy: BlockOccupancy, holders: Holders) -> page.BlockDocument:
    block = occupancy.block
    allocated, cooling, free = occupancy.allocated, occupancy.cooling, occupancy.free
    return page.BlockDocument(
        name=block.name,
        index=block.index,
        ipv4=block.ipv4,
        ipv6=block.ipv6,
        use=_USES[block.use],
        addresses=page.AddressCounts(
            total=occupancy.size,
            allocated=allocated,
            cooling=cooling,
            free=free,
            withheld=occupancy.size - allocated - cooling - free,
        ),
        used=tuple(_describe_use(use, holders) for use in occupancy.uses),
        former=tuple(
            _describe_former(block, slot, had)
            for slot, had in sorted(holders.former(block.name).items())
            if 0 <= slot < occupancy.size  # the journal may be of a larger block of that name
        ),
    )


def _describe_former(block: Block, slot: int, had: FormerHolder) -> page.FormerHolderDocument:
    ipv4, ipv6 = block.addresses(slot)
    return page.FormerHolderDocument(
        slot=slot,
        ipv4=ipv4,
        ipv6=ipv6,
        namespace=had.pod.namespace,
        pod=had.pod.name,
        container=had.key.container_id,
        interface=had.key.ifname,
        since=had.since,
        until=had.until,
    )


def _describe_use(use: AddressUse, holders: Holders) -> page.AddressDocument:
    key = use.key
    held = UNKNOWN_HOLDER if key is None else holders.holder(key)
    return page.AddressDocument(
        ipv4=use.ipv4,
        ipv6=use.ipv6,
        slot=use.slot,
        state=_STATES[use.state],
        namespace=held.pod.namespace if held.pod else None,
        pod=held.pod.name if held.pod else None,
        container=key.container_id if key else None,
        interface=key.ifname if key else None,
        since=held.since,
    )
