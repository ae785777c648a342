"""Addresses from pools, put together: everything that coild has for them, behind one object with a small interface.

    informers ─► BlockStore ─► PoolChanges ─► PoolDemand ─► BlockRequester ─► BlockRequests
                     ▲              └─► work queue ─► BlockRelease ─► RouteExport, AddressBlocks
    pods' ADD, DEL ──┴── PoolAddressSource

`coild.main` hands nothing of it to anybody else: the pods' engine gets `source`; metrics, inspection, the release of
blocks and the exported routes are in here. What runs is named by `tasks`, and is started after the source has recovered
what the kernel holds: until then nothing is given, requested or released.
"""

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import AddressBlock
from coil.crd.block_request import BlockRequest
from coil.crd.builtin import Namespace
from coil.kube.api_client import ApiClient
from coil.reconcile.backoff import Backoff
from coil.reconcile.controller import Controller
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.informer import Informer
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import WorkQueue
from coild.addresses.block_release import BlockRelease, ReleasableBlocks, StuckRelease
from coild.addresses.block_requester import BlockRequester
from coild.addresses.block_size import BlockSizes
from coild.addresses.block_store import BlockStore
from coild.addresses.journal import AddressJournal
from coild.addresses.pool_changes import PoolChanges
from coild.addresses.pool_demand import PoolDemand, WaitObserver
from coild.addresses.pool_source import PoolAddressSource
from coild.addresses.report import PoolCollector, WaitMetrics
from coild.addresses.route_export import RouteExport
from coild.addresses.spare_block import LINGER_PERIODS, SpareBlock
from coild.model.address_source import PodWiring
from coild.model.journal_file import JournalFile
from coild.model.pod_network import PodNetwork
from coild.model.repairs import Repairs
from coild.settings import Settings

REFUSAL_BACKOFF = Backoff(base=1.0, cap=30.0)
EXPORT_BACKOFF = Backoff(base=0.5, cap=30.0)
RELEASE_WORKERS = 4


@dataclass(frozen=True, kw_only=True)
class PoolDeps:
    """What the parts depend on.

    `blocks` and `requests` are of this node's objects and must be run; `namespace_of` reads one Namespace, from a cache
    where it can. `clock` never jumps; `wall` is the time of day in seconds since 1970. `observe_wait`, if given, takes
    the place of the histogram.
    """

    client: ApiClient
    network: PodNetwork
    blocks: Informer[AddressBlock]
    requests: Informer[BlockRequest]
    namespace_of: Callable[[str], Coroutine[Any, Any, Namespace]]
    wiring: PodWiring[Any]
    recorder: Recorder
    reconcile_metrics: ReconcileMetrics
    repairs: Repairs
    rng: Random
    log: FilteringBoundLogger
    observe_wait: WaitObserver | None = None
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


class PoolIpam:
    """One per process. `node_uid` is the Node's at start."""

    def __init__(
        self,
        settings: Settings,
        deps: PoolDeps,
        *,
        node_uid: str,
        refusal_backoff: Backoff = REFUSAL_BACKOFF,
        export_backoff: Backoff = EXPORT_BACKOFF,
    ) -> None:
        log, rng, clock, cooldown = deps.log, deps.rng, deps.clock, settings.cooling
        self.journal = AddressJournal(
            JournalFile(settings.journal, log=log), cooldown=cooldown, wall=deps.wall, clock=clock
        )
        waits = WaitMetrics()
        self.changes = PoolChanges()
        self.release_queue = WorkQueue("block-release", metrics=deps.reconcile_metrics, clock=clock, random=rng.random)
        self.export = RouteExport(
            deps.network,
            policy=settings.route_policy,
            backoff=export_backoff,
            rng=rng,
            repairs=deps.repairs,
            log=log,
        )
        self.store = BlockStore(
            deps.blocks,
            journal=self.journal,
            cooldown=cooldown,
            changes=self.changes,
            networks_changed=self.export.changed,
            log=log,
            clock=clock,
        )
        self.requester = BlockRequester(
            client=deps.client,
            requests=deps.requests,
            store=self.store,
            changes=self.changes,
            node=settings.node_name,
            node_uid=node_uid,
            backoff=refusal_backoff,
            rng=rng,
            log=log,
            clock=clock,
        )
        self.sizes = BlockSizes(deps.client, self.changes, log, clock)
        self.demand = PoolDemand(
            changes=self.changes,
            store=self.store,
            requester=self.requester,
            sizes=self.sizes,
            spare=SpareBlock(settings.warm_addresses, LINGER_PERIODS * cooldown, clock),
            release_queue=self.release_queue,
            overdue=settings.acquire_timeout,
            observe_wait=deps.observe_wait or waits.waited,
            log=log,
            clock=clock,
        )
        self.source = PoolAddressSource(
            store=self.store,
            demand=self.demand,
            requester=self.requester,
            sizes=self.sizes,
            namespace_of=deps.namespace_of,
            journal=self.journal,
            wiring=deps.wiring,
            collectors=(PoolCollector(self.store, self.export), waits.seconds),
            log=log,
        )
        self.release = BlockRelease(
            client=deps.client,
            blocks=ReleasableBlocks(self.store, cooldown, clock),
            demand=self.demand,
            withdraw=self.export.flush,
            retract=self.requester.retract,
            log=log,
        )
        self._releasing = Controller(
            "block-release",
            self.release.reconcile,
            queue=self.release_queue,
            metrics=deps.reconcile_metrics,
            log=log,
            workers=RELEASE_WORKERS,
        )
        self.stuck = StuckRelease(self.store, deps.recorder, settings.node_name, clock)

    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What is to run as long as the process, by name; once, after the source has recovered."""
        return {
            "route-export": self.export.run(self.store.networks),
            "pool-demand": self.demand.run(),
            "block-release": self._releasing.run(),
        }

    async def discard_stale_requests(self) -> None:
        """Delete the BlockRequests that an earlier process left. Failures are logged."""
        await self.requester.discard_stale()

    def report_stuck_releases(self) -> None:
        """Warn by Events of blocks that should have gone long ago. Periodically; never raises."""
        self.stuck.report()

    async def withdraw_routes(self) -> None:
        """Take every route out of the export table. Raises NetlinkError."""
        await self.export.sync(())

    async def close(self) -> None:
        """End what is under way. Nothing here may be used afterwards."""
        await self.demand.close()
        self.journal.close()
