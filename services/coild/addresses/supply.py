"""Puts the parts together that supply addresses from pools, for `coild.main`, and for tests with their own clocks."""

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import AddressBlock
from coil.crd.block_request import BlockRequest
from coil.crd.builtin import Namespace
from coil.crd.names import NodeName
from coil.kube.api_client import ApiClient
from coil.reconcile.backoff import Backoff
from coil.reconcile.informer import Informer
from coil.reconcile.queue import WorkQueue
from coild.addresses.block_requester import BlockRequester
from coild.addresses.block_size import BlockSizes
from coild.addresses.block_store import BlockStore
from coild.addresses.journal import AddressJournal
from coild.addresses.journal_file import JournalFile
from coild.addresses.pool_changes import PoolChanges
from coild.addresses.pool_demand import DemandObserver, PoolDemand, Unobserved
from coild.addresses.pool_source import PoolAddressSource
from coild.addresses.spare_block import LINGER_PERIODS, SpareBlock
from coild.model.address_source import PodWiring

REFUSAL_BACKOFF = Backoff(base=1.0, cap=30.0)


@dataclass(frozen=True, kw_only=True)
class SupplyOptions:
    """What a node's admin may set, and which node it is. Times in seconds; `node_uid` is the Node's at start."""

    node: NodeName
    node_uid: str
    cooldown: float
    warm_addresses: int
    acquire_timeout: float
    journal: Path | None
    backoff: Backoff = REFUSAL_BACKOFF


@dataclass(frozen=True, kw_only=True)
class SupplyDeps:
    """What the parts depend on. `changed` is that of `BlockStore`, `release_queue` that of `PoolDemand`."""

    client: ApiClient
    blocks: Informer[AddressBlock]
    requests: Informer[BlockRequest]
    namespace_of: Callable[[str], Coroutine[Any, Any, Namespace]]
    changed: Callable[[], None]
    release_queue: WorkQueue
    wiring: PodWiring[Any]


@dataclass(frozen=True, slots=True)
class PoolSupply:
    """The parts that others have to do with."""

    journal: AddressJournal
    changes: PoolChanges
    store: BlockStore
    requester: BlockRequester
    sizes: BlockSizes
    demand: PoolDemand
    source: PoolAddressSource

    async def close(self) -> None:
        """End what is under way. Nothing here may be used afterwards."""
        await self.demand.close()
        self.journal.close()


def assemble_supply(
    options: SupplyOptions,
    around: SupplyDeps,
    *,
    rng: Random,
    log: FilteringBoundLogger,
    observer: DemandObserver | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> PoolSupply:
    """`wall` is the time of day in seconds since 1970, `clock` never jumps."""
    journal = AddressJournal(JournalFile(options.journal, log=log), cooling=options.cooldown, wall=wall, clock=clock)
    changes = PoolChanges()
    store = BlockStore(
        around.blocks,
        journal=journal,
        cooldown=options.cooldown,
        changes=changes,
        changed=around.changed,
        log=log,
        clock=clock,
    )
    requester = BlockRequester(
        client=around.client,
        requests=around.requests,
        store=store,
        changes=changes,
        node=options.node,
        node_uid=options.node_uid,
        backoff=options.backoff,
        rng=rng,
        log=log,
        clock=clock,
    )
    sizes = BlockSizes(around.client, changes, log, clock)
    demand = PoolDemand(
        changes=changes,
        store=store,
        requester=requester,
        sizes=sizes,
        spare=SpareBlock(options.warm_addresses, LINGER_PERIODS * options.cooldown, clock),
        release_queue=around.release_queue,
        overdue=options.acquire_timeout,
        observer=observer or Unobserved(),
        clock=clock,
    )
    source = PoolAddressSource(
        store=store,
        demand=demand,
        requester=requester,
        sizes=sizes,
        namespace_of=around.namespace_of,
        journal=journal,
        wiring=around.wiring,
        log=log,
    )
    return PoolSupply(journal, changes, store, requester, sizes, demand, source)
