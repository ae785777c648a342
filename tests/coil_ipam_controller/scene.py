"""Small worlds for the reconcilers: documents, and controllers that stand on an API in memory."""

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
from coil_ipam_controller.deps import Deps, Policy
from coil_ipam_controller.reconcilers import Reconcilers
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil_ipam_controller.memory_recorder import MemoryRecorder
from tests.coil_ipam_controller.memory_view import MemoryView

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
POLICY = Policy(gc_interval=3600, node_grace=0, dead_node_after=600, pool_nearly_full=90)
"""Without a grace for absent nodes, so that only the tests of the grace have to wait for it."""


class Life:
    """One life of the controller: its own caches and book. It begins with caches that are up to date.

    `clock` is its monotonic one; `wall` is seconds since `NOON`.
    """

    def __init__(self, client: MemoryClient, policy: Policy = POLICY) -> None:
        self.client = client
        self.clock = 0.0
        self.wall = 0.0
        self.caches = MemoryView(client.api)
        self.book = IndexSet(lambda: self.clock)
        self.caches.blocks.subscribe(self.book.observe)
        self.caches.look()
        self.events = MemoryRecorder()
        self.doubtful = 0
        place = Deps(
            client=client,
            view=self.caches.view,
            book=self.book,
            recorder=self.events,
            now=lambda: NOON + timedelta(seconds=self.wall),
            clock=lambda: self.clock,
            log=structlog.wrap_logger(structlog.ReturnLogger(), processors=[]),
        )
        self.team = Reconcilers.assemble(place, policy, doubtful=partial(setattr, self, "doubtful"))
        self.requests = self.team.requests
        self.pools = self.team.pools
        self.nodes = self.team.nodes

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
