"""Writes the status of each AddressPool, and tells by Events what in it somebody must act upon.

The keys are pool names. Changes of a pool's spec come at once, for all pools, as the peace between them is part of
each one's state; blocks that come and go are gathered for `SETTLE_SECONDS` first (see `leadership`), so two thousand
nodes that ask for a block make a write a second and not two thousand. What has not changed is not written.

The conditions before are read from the pool itself, so a new leader does not tell again what the last one has told.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from structlog.typing import FilteringBoundLogger

from coil.crd.address_pool import ADDRESS_POOLS, AddressPool, PoolConditionType, PoolObstacle
from coil.crd.names import FINALIZER
from coil.ipam.index_set import IndexSet
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError
from coil.reconcile.controller import DONE, Result
from coil.reconcile.event_recorder import Recorder
from coil_ipam_controller.cluster_view import BY_POOL, ClusterView
from coil_ipam_controller.pool_event import tell_change, tell_held
from coil_ipam_controller.pool_status import Holding, plan_status, render_status
from coil_ipam_controller.pool_supply import assess_pool

SETTLE_SECONDS = 1.0


class PoolStatusReconciler:
    """`nearly_full` is in percent of a pool's blocks; `now` is the wall clock, in UTC."""

    def __init__(
        self,
        *,
        client: ApiClient,
        view: ClusterView,
        book: IndexSet,
        recorder: Recorder,
        nearly_full: int,
        now: Callable[[], datetime],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._view = view
        self._book = book
        self._recorder = recorder
        self._nearly_full = nearly_full
        self._now = now
        self._log = log

    async def reconcile(self, name: str) -> Result:
        """Bring the status of the pool of that name up to date. Raises ConflictError when the cache lags behind."""
        pool = self._view.pools.get(name)
        # A new pool first gets its finalizer, and comes again: no two writes for one version of it.
        if pool is None or not (pool.metadata.deleting or FINALIZER in pool.metadata.finalizers):
            return DONE
        deleting = pool.metadata.deleting
        holding = Holding.of(self._view.blocks.by_index(BY_POOL, name)) if deleting else None
        status = plan_status(
            pool,
            assess_pool(pool, self._view.pools.items()),
            used=self._book.used(pool.name),
            holding=holding,
            nearly_full=self._nearly_full,
            now=self._now(),
        )
        if status == pool.status:
            return DONE
        try:
            await self._client.patch(ADDRESS_POOLS, name, render_status(pool, status), subresource="status")
        except NotFoundError:
            return DONE
        tell_change(self._recorder, pool, status)
        ready = pool.status.condition(PoolConditionType.READY)
        if holding is not None and holding.blocks and (ready is None or ready.reason != PoolObstacle.DELETING):
            tell_held(self._recorder, pool, holding)
            self._log.info("pool waits for its blocks", pool=name, held=str(holding))
        return DONE

    def affected(self, old: AddressPool | None, new: AddressPool | None) -> Iterable[str]:
        """The pools whose status may differ after that change of one: all, unless it was our own writing."""
        if old is None or new is None or _matters(old) != _matters(new):
            for pool in self._view.pools.items():
                yield pool.name


def _matters(pool: AddressPool) -> tuple[object, ...]:
    return pool.spec, pool.metadata.generation, pool.metadata.deleting, FINALIZER in pool.metadata.finalizers
