"""The cluster as a document of `coil.page`. Pure: the same snapshot, the same document."""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import AddressPool
from coil.crd.block_request import BlockRequest, Pending, Refused
from coil.crd.builtin import Node
from coil.crd.names import PoolName
from coil.page import cluster_document as page
from coil_ipam_controller.dead_node import unready_since
from coil_ipam_controller.pool_assessment import assess_pool


@dataclass(frozen=True, slots=True)
class HistorySnapshot:
    """Block counts by pool, the oldest first, `interval` seconds apart; the last ones at `until`."""

    interval: float
    until: datetime | None
    counts: Mapping[PoolName, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """What the caches held at one moment. The objects in it are frozen, so it may go to another thread."""

    replica: str
    leads: bool
    at: datetime
    pools: Sequence[AddressPool]
    blocks: Sequence[AddressBlock]
    nodes: Sequence[Node]
    requests: Sequence[BlockRequest]
    history: HistorySnapshot
    interfaces: page.InterfacesDocument | None = None


def describe_cluster(snapshot: ClusterSnapshot) -> page.ClusterDocument:
    """The whole document. Linear in the number of blocks."""
    present = {node.metadata.name: unready_since(node) for node in snapshot.nodes}
    placed: dict[str, list[page.PlacedBlock]] = defaultdict(list)
    for block in snapshot.blocks:
        placed[block.pool].append(_place(block, present))
    for blocks in placed.values():
        blocks.sort(key=lambda block: (block.index, block.name))
    stored = sorted(snapshot.pools, key=lambda pool: pool.name)
    pools = [_describe_pool(pool, placed.pop(pool.name, []), snapshot) for pool in stored]
    # No pool goes before its blocks, unless somebody takes finalizers away by hand: that is to be seen.
    pools += [_describe_stray(name, blocks, snapshot) for name, blocks in sorted(placed.items())]
    return page.ClusterDocument(
        replica=snapshot.replica,
        leads=snapshot.leads,
        at=snapshot.at,
        blocks=sum((pool.blocks for pool in pools), start=page.UseCounts()),
        pools=tuple(pools),
        nodes=tuple(_describe_nodes(pools, present)),
        requests=tuple(_describe_requests(snapshot.requests)),
        interfaces=snapshot.interfaces,
    )


def _place(block: AddressBlock, present: Container[str]) -> page.PlacedBlock:
    state = page.state_of(block, present)
    return page.PlacedBlock(
        name=block.name, index=block.index, node=block.node, state=state, ipv4=block.ipv4, ipv6=block.ipv6
    )


def _describe_pool(
    pool: AddressPool, placed: Sequence[page.PlacedBlock], snapshot: ClusterSnapshot
) -> page.PoolDocument:
    standing = assess_pool(pool, snapshot.pools)
    layout = standing.layout
    # Blocks that were made by hand may be more than the pool has room for.
    total = max(layout.capacity({block.index for block in placed}) if layout else 0, len(placed))
    size = 1 << layout.block_size_bits if layout else 0
    counts = page.UseCounts(total=total, used=len(placed), free=total - len(placed))
    return page.PoolDocument(
        name=pool.name,
        gives_blocks=standing.obstacle is None,
        reason=standing.message,
        block_size=size,
        subnets=tuple(page.SubnetDocument(ipv4=entry.ipv4, ipv6=entry.ipv6) for entry in pool.spec.subnets),
        blocks=counts,
        addresses=page.UseCounts(total=size * counts.total, used=size * counts.used, free=size * counts.free),
        conditions=tuple(
            page.ConditionDocument(type=it.type, status=it.status, reason=it.reason, message=it.message)
            for it in pool.status.conditions
        ),
        placed=tuple(placed),
        history=_describe_history(pool.name, snapshot.history),
    )


def _describe_stray(name: str, placed: Sequence[page.PlacedBlock], snapshot: ClusterSnapshot) -> page.PoolDocument:
    return page.PoolDocument(
        name=name,
        gives_blocks=False,
        reason="there is no such pool" if name else "these blocks name no pool",
        block_size=0,
        blocks=page.UseCounts(total=len(placed), used=len(placed)),
        addresses=page.UseCounts(),
        placed=tuple(placed),
        history=_describe_history(PoolName(name), snapshot.history),
    )


def _describe_history(pool: PoolName, history: HistorySnapshot) -> page.HistoryDocument:
    counts = tuple(history.counts.get(pool, ()))
    return page.HistoryDocument(interval_seconds=history.interval, until=history.until, used_blocks=counts)


def _describe_nodes(
    pools: Iterable[page.PoolDocument], present: Mapping[str, datetime | None]
) -> Iterator[page.NodeDocument]:
    counts: dict[str, Counter[str]] = {name: Counter() for name in present}
    for pool in pools:
        for block in pool.placed:
            if block.node:
                counts.setdefault(block.node, Counter())[pool.name] += 1
    for name, by_pool in sorted(counts.items()):
        yield page.NodeDocument(
            name=name, present=name in present, unready_since=present.get(name), blocks=dict(by_pool)
        )


def _describe_requests(requests: Iterable[BlockRequest]) -> Iterator[page.RequestDocument]:
    for request in sorted(requests, key=_age):
        match request.outcome():
            case Pending():
                state, reason = page.RequestState.PENDING, ""
            case Refused(reason=word, message=message):
                state, reason = page.RequestState.REFUSED, ": ".join(filter(None, (word, message)))
            case _:
                continue
        yield page.RequestDocument(
            name=request.metadata.name,
            node=request.spec.node_name,
            pool=request.spec.pool_name,
            state=state,
            since=request.metadata.creation_timestamp,
            reason=reason,
        )


def _age(request: BlockRequest) -> tuple[str, str]:
    created = request.metadata.creation_timestamp
    return ("" if created is None else created.isoformat(), request.metadata.name)
