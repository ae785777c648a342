"""The controller's picture of the cluster: informer caches, and the indexes that it looks things up by.

A picture may be late. Reconcilers act on it freely where a mistake is found out by the API server (a name that is
taken, a resource version that has moved on) and ask the API server where it would not be.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import AddressPool
from coil.crd.block_request import BlockRequest
from coil.crd.builtin import Node

T = TypeVar("T")

BY_POOL = "pool"
BY_NODE = "node"
BY_REQUEST = "request"


class Cache(Protocol[T]):
    """The reading side of `coil.reconcile`'s informer."""

    def get(self, key: str) -> T | None: ...

    def items(self) -> list[T]: ...

    def by_index(self, index: str, value: str) -> list[T]: ...


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Blocks are indexed by pool, node and request UID; requests by node."""

    pools: Cache[AddressPool]
    blocks: Cache[AddressBlock]
    requests: Cache[BlockRequest]
    nodes: Cache[Node]


def _present(*values: str) -> list[str]:
    return [value for value in values if value]


BLOCK_INDEXERS: Mapping[str, Callable[[AddressBlock], Iterable[str]]] = {
    BY_POOL: lambda block: _present(block.pool),
    BY_NODE: lambda block: _present(block.node),
    BY_REQUEST: lambda block: _present(block.request),
}
REQUEST_INDEXERS: Mapping[str, Callable[[BlockRequest], Iterable[str]]] = {
    BY_NODE: lambda request: _present(request.spec.node_name),
}
