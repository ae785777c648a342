"""What an admin reads about a pool: its size, its use, and what needs attention; in its status and in the metrics.

Two conditions. `Ready` says whether the pool may give blocks at all: its spec has no faults, no older pool has all of
its addresses, nobody has deleted it. `Full` says whether there are any left, and in its reason whether that will be
soon (HasRoom, NearlyFull, Exhausted): one condition with three reasons, so that `kubectl get` shows the state in one
column and `kubectl wait --for=condition=Full=false` waits for room.

Everything is computed from the layout and a count, never block by block: a pool may have 2^59 of them.

A change of a pool's spec is written at once, to all pools, as their overlaps are part of each one's state. Changes of
blocks are gathered for `BATCH_WINDOW` first, so two thousand nodes that ask for a block make one write a second and not
two thousand. What has not changed is not written. The conditions before are read from the pool itself, so a new leader
does not report again what the last one has reported.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import (
    ADDRESS_POOLS,
    MAX_COUNT,
    AddressPool,
    AddressPoolStatus,
    PoolCondition,
    PoolConditionType,
    PoolFill,
    PoolObstacle,
    Usage,
)
from coil.crd.block_request import Refused
from coil.crd.builtin import Node
from coil.crd.names import FINALIZER, PoolName
from coil.crd.pool_validation import pool_networks
from coil.ipam.cluster_network import describe_occupied
from coil.ipam.index_set import IndexSet
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError
from coil.manager.term import Term
from coil.reconcile.controller import DONE, Result
from coil.reconcile.event_recorder import Recorder
from coil_ipam_controller.caches import BY_POOL, Caches
from coil_ipam_controller.pool_assessment import (
    RemainingBlocks,
    Standing,
    assess_pool,
    check_pool,
    describe_exhaustion,
    report_change,
    report_in_use,
)

GIVES_BLOCKS: Final = "GivesBlocks"
BATCH_WINDOW: Final = 1.0
"""Seconds for which changes of blocks are gathered."""
WORKERS: Final = 2


class PoolStatusReconciler:
    """The keys are names of pools. `index` follows the blocks of `caches`, `now` is the wall clock, in UTC.

    `nearly_full` is in percent of a pool's blocks. Every pool is looked at again after `resync` seconds: somebody may
    have edited a status, or a write from here was overtaken by one of the last leader.
    """

    def __init__(
        self,
        *,
        client: ApiClient,
        caches: Caches,
        index: IndexSet,
        recorder: Recorder,
        nearly_full: int,
        resync: float,
        now: Callable[[], datetime],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._caches = caches
        self._index = index
        self._recorder = recorder
        self._nearly_full = nearly_full
        self._resync = resync
        self._now = now
        self._log = log

    def setup(self, term: Term) -> None:
        controller = term.controller("poolstatus", self.reconcile, workers=WORKERS)
        controller.watch(self._caches.pools, self.affected)
        controller.watch(self._caches.blocks, _pools_of_block, batch_window=BATCH_WINDOW)
        controller.watch(self._caches.nodes, self.of_node, batch_window=BATCH_WINDOW)
        controller.resync(self._names, every=self._resync, at_start=True)

    async def reconcile(self, name: str) -> Result:
        """Bring the status of the pool of that name up to date. Raises ConflictError when the cache lags behind."""
        pool = self._caches.pools.get(name)
        # A new pool gets its finalizer first, which is another event: no two writes for one version of it.
        if pool is None or not (pool.metadata.deleting or FINALIZER in pool.metadata.finalizers):
            return DONE
        deleting = pool.metadata.deleting
        remaining = RemainingBlocks.of(self._caches.blocks.by_index(BY_POOL, name)) if deleting else None
        standing = assess_pool(pool, self._caches.pools.items())
        status = plan_status(
            pool,
            standing,
            total=0 if standing.layout is None else self._index.capacity(standing.layout),
            used=self._index.used(pool.name),
            remaining=remaining,
            occupied=describe_occupied(pool, self._caches.networks),
            nearly_full=self._nearly_full,
            now=self._now(),
        )
        if status == pool.status:
            return DONE
        try:
            await self._client.patch(ADDRESS_POOLS, name, render_status(pool, status), subresource="status")
        except NotFoundError:
            return DONE
        report_change(self._recorder, pool, status)
        ready = pool.status.condition(PoolConditionType.READY)
        if remaining is not None and remaining.blocks and (ready is None or ready.reason != PoolObstacle.DELETING):
            report_in_use(self._recorder, pool, remaining)
            self._log.info("pool waits for its blocks", pool=name, held=str(remaining))
        return DONE

    def affected(self, old: AddressPool | None, new: AddressPool | None) -> Iterable[str]:
        """The pools whose status may differ after that change of one: all, unless only a status was written."""
        if old is None or new is None or _matters(old) != _matters(new):
            yield from self._names()

    def of_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """The pools that have, or had, an address of the Node."""
        before, after = ({*node.addresses()} if node is not None else set() for node in (old, new))
        changed = before ^ after
        for pool in self._caches.pools.items() if changed else ():
            networks = [network for _, network in pool_networks(pool.spec)]
            if any(address in network for address in changed for network in networks):
                yield pool.name

    def _names(self) -> list[str]:
        return [pool.name for pool in self._caches.pools.items()]


def _pools_of_block(old: AddressBlock | None, new: AddressBlock | None) -> Iterable[str]:
    """Pools that have a block more or less."""
    before, after = ((block.pool, block.index) if block is not None else None for block in (old, new))
    if before != after:
        yield from {place[0] for place in (before, after) if place is not None and place[0]}


def _matters(pool: AddressPool) -> tuple[object, ...]:
    return pool.spec, pool.metadata.generation, pool.metadata.deleting, FINALIZER in pool.metadata.finalizers


class PoolCollector(Collector):
    """The fill level of every pool, read from the caches at the moment of a scrape, so that it cannot be stale.

    A pool that gives no blocks has a maximum of 0. Every replica reports it, leader or not; take the `max by (pool)`.
    """

    def __init__(self, caches: Caches, registry: CollectorRegistry) -> None:
        self._caches = caches
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        # Without it the registration would scrape, and the caches may not be filled yet.
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        most, allocated = self._families()
        pools = self._caches.pools.items()
        for pool in pools:
            layout = check_pool(pool, pools)
            blocks = self._caches.blocks.by_index(BY_POOL, pool.name)
            indices = {block.index for block in blocks}
            most.add_metric([pool.name], 0 if isinstance(layout, Refused) else layout.capacity(indices))
            allocated.add_metric([pool.name], len(blocks))
        yield most
        yield allocated

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                "coil_controller_max_blocks",
                "Maximum number of blocks of the pool; 0 for a pool that does not supply blocks.",
                labels=["pool"],
            ),
            GaugeMetricFamily("coil_controller_allocated_blocks", "Blocks of the pool that exist.", labels=["pool"]),
        )


def plan_status(
    pool: AddressPool,
    standing: Standing,
    *,
    total: int,
    used: int,
    remaining: RemainingBlocks | None,
    nearly_full: int,
    now: datetime,
    occupied: str = "",
) -> AddressPoolStatus:
    """The status that the pool should have.

    `total` is how many blocks it may have, and `used` how many indices are taken. `remaining` matters only for a pool
    that is being deleted. `nearly_full` is in percent of the blocks. `occupied` tells which of its addresses are the
    cluster's own. Conditions of other types, by others, stay.
    """
    bits = max(pool.spec.block_size_bits, 0)
    invalid = standing.obstacle in {PoolObstacle.INVALID, PoolObstacle.OVERLAPS}
    full = _UNKNOWN if invalid or standing.layout is None else _full(pool.name, total, used, nearly_full)
    ours = [_ready(standing, remaining), full]
    if occupied or pool.status.condition(PoolConditionType.OCCUPIED) is not None:
        ours.append(_occupied(occupied))
    # Of a pool that gives no block at all, nobody has looked whether the rest of it is as it should be.
    known = standing.obstacle is None and pool.status.condition(PoolConditionType.DEGRADED) is not None
    if standing.degraded is not None or known:
        ours.append(standing.degraded or _SOUND)
    types = {condition.type for condition in ours}
    conditions = [_since(condition, pool.status.condition(condition.type), now) for condition in ours]
    return AddressPoolStatus(
        blocks=Usage(total=_saturate(total, 0), used=_saturate(used, 0)),
        addresses=Usage(total=_saturate(total, bits), used=_saturate(used, bits)),
        conditions=(*conditions, *(other for other in pool.status.conditions if other.type not in types)),
        observed_generation=pool.metadata.generation,
    )


def render_status(pool: AddressPool, status: AddressPoolStatus) -> dict[str, Any]:
    """The merge patch that replaces the pool's status, zeros written out. Conflicts when the pool has changed."""
    return {
        "metadata": {"resourceVersion": pool.metadata.resource_version},
        "status": {
            "blocks": {"total": status.blocks.total, "used": status.blocks.used},
            "addresses": {"total": status.addresses.total, "used": status.addresses.used},
            "conditions": msgspec.to_builtins(status.conditions),
            "observedGeneration": status.observed_generation,
        },
    }


def _ready(standing: Standing, remaining: RemainingBlocks | None) -> PoolCondition:
    if standing.obstacle is None:
        return PoolCondition(type=PoolConditionType.READY, status="True", reason=GIVES_BLOCKS)
    message = standing.message if remaining is None or not remaining.blocks else f"{standing.message}; {remaining}"
    return PoolCondition(type=PoolConditionType.READY, status="False", reason=str(standing.obstacle), message=message)


def _occupied(message: str) -> PoolCondition:
    if message:
        return PoolCondition(type=PoolConditionType.OCCUPIED, status="True", reason="ClusterAddresses", message=message)
    return PoolCondition(type=PoolConditionType.OCCUPIED, status="False", reason="PodsAlone")


_SOUND: Final = PoolCondition(type=PoolConditionType.DEGRADED, status="False", reason="KeepsRules")
_UNKNOWN: Final = PoolCondition(type=PoolConditionType.FULL, status="Unknown", reason=PoolFill.UNKNOWN)


def _full(pool: PoolName, total: int, used: int, nearly_full: int) -> PoolCondition:
    if used >= total:
        message = describe_exhaustion(pool, total)
        return PoolCondition(type=PoolConditionType.FULL, status="True", reason=PoolFill.EXHAUSTED, message=message)
    if used * 100 > total * nearly_full:
        message = f"more than {nearly_full} % of the {total} blocks of the pool {pool!r} are in use"
        return PoolCondition(type=PoolConditionType.FULL, status="False", reason=PoolFill.NEARLY_FULL, message=message)
    return PoolCondition(type=PoolConditionType.FULL, status="False", reason=PoolFill.HAS_ROOM)


def _since(condition: PoolCondition, before: PoolCondition | None, now: datetime) -> PoolCondition:
    """With the time at which its status became what it is."""
    same = before is not None and before.status == condition.status and before.last_transition_time is not None
    since = before.last_transition_time if same and before is not None else now.replace(microsecond=0)
    return msgspec.structs.replace(condition, last_transition_time=since)


def _saturate(count: int, bits: int) -> int:
    # A spec that got around validation may name any number of bits.
    return MAX_COUNT if bits >= 63 and count else min(count << min(bits, 63), MAX_COUNT)
