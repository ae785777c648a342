"""Small worlds for the reconcilers: documents, and controllers that stand on an API in memory."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import structlog

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest, BlockRequestSpec, Granted
from coil.crd.builtin import NODES, Node
from coil.crd.meta import ObjectMeta
from coil.crd.names import FINALIZER, BlockName, NodeName, PoolName
from coil.ipam.index_set import IndexSet
from coil.runtime.flag import parse_settings
from coil_ipam_controller.address_pool_reconciler import AddressPoolReconciler
from coil_ipam_controller.block_audit_reconciler import BlockAuditReconciler
from coil_ipam_controller.block_request_reconciler import BlockRequestReconciler
from coil_ipam_controller.dead_node import DeadNodeReconciler
from coil_ipam_controller.node_reconciler import NodeReconciler
from coil_ipam_controller.occupied_block_reconciler import OccupiedBlockReconciler
from coil_ipam_controller.pool_status import PoolStatusReconciler
from coil_ipam_controller.settings import Settings
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil_ipam_controller.memory_caches import MemoryCaches
from tests.coil_ipam_controller.memory_recorder import MemoryRecorder

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SETTINGS = replace(parse_settings(Settings, (), {}, program="coil-ipam-controller", about=""), node_grace=0.0)
"""The defaults, but without a grace for absent nodes, so that only the tests of the grace have to wait for it."""


class Life:
    """One life of the controller: its own caches and index. It begins with caches that are up to date.

    `clock` is its monotonic one; `wall` is seconds since `NOON`.
    """

    def __init__(self, client: MemoryClient, settings: Settings = SETTINGS) -> None:
        self.client = client
        self.clock = 0.0
        self.wall = 0.0
        self.caches = MemoryCaches(client.api)
        self.index = IndexSet(lambda: self.clock, occupied_run=self.caches.all.networks.occupied_run)
        self.caches.blocks.subscribe(self.index.observe)
        self.caches.look()
        self.events = MemoryRecorder()
        self.doubtful = 0
        log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
        caches, index, recorder, resync = self.caches.all, self.index, self.events, settings.gc_interval

        def clock() -> float:
            return self.clock

        def now() -> datetime:
            return NOON + timedelta(seconds=self.wall)

        self.requests = BlockRequestReconciler(
            client=client, caches=caches, index=index, recorder=recorder, resync=resync, now=now, log=log
        )
        self.pools = AddressPoolReconciler(client=client, caches=caches, index=index, log=log)
        self.statuses = PoolStatusReconciler(
            client=client,
            caches=caches,
            index=index,
            recorder=recorder,
            nearly_full=settings.pool_nearly_full,
            resync=resync,
            now=now,
            log=log,
        )
        self.occupied = OccupiedBlockReconciler(client=client, caches=caches, index=index, resync=resync, log=log)
        self.nodes = NodeReconciler(
            client=client, caches=caches, grace=settings.node_grace, resync=resync, clock=clock, log=log
        )
        self.dead_nodes = DeadNodeReconciler(
            caches=caches, recorder=recorder, after=settings.dead_node_after, resync=resync, now=now, log=log
        )
        self.audit = BlockAuditReconciler(
            client=client,
            caches=caches,
            recorder=recorder,
            doubtful=partial(setattr, self, "doubtful"),
            resync=resync,
            now=now,
            clock=clock,
            log=log,
        )

    def wait(self, seconds: float) -> None:
        """Time passes on both clocks."""
        self.clock += seconds
        self.wall += seconds


def add_pool(api: MemoryApi, name: str, *subnets: SubnetSet, bits: int = 5) -> AddressPool:
    spec = AddressPoolSpec(block_size_bits=bits, subnets=subnets)
    metadata = ObjectMeta(name=name, finalizers=(FINALIZER,))
    return api.create(ADDRESS_POOLS, AddressPool(metadata=metadata, spec=spec))


def add_node(api: MemoryApi, name: str) -> Node:
    return api.create(NODES, Node(metadata=ObjectMeta(name=name)))


def add_request(api: MemoryApi, name: str, *, node: str = "node1", pool: str = "default") -> BlockRequest:
    spec = BlockRequestSpec(node_name=NodeName(node), pool_name=PoolName(pool))
    return api.create(BLOCK_REQUESTS, BlockRequest(metadata=ObjectMeta(name=name), spec=spec))


def add_block(api: MemoryApi, name: str, index: int, **labels: str) -> AddressBlock:
    """Labels by their last part: `node="node1"`."""
    full: dict[str, Any] = {f"coil.cybozu.com/{key}": value for key, value in labels.items()}
    metadata = ObjectMeta(name=name, labels=full, finalizers=(FINALIZER,))
    return api.create(ADDRESS_BLOCKS, AddressBlock(metadata=metadata, index=index, ipv4="10.9.0.0/27"))


def granted(block: str) -> Granted:
    return Granted(BlockName(block))
