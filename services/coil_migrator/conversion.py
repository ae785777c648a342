"""From v1's state to v2's objects. Pure; second step of a dump.

    pool  ─► AddressPool of the same name, block size and subnets, in v1's order, which numbers the blocks
    block ─► AddressBlock `<pool>-<index>-v1`, reserved: its routes are announced and its addresses given to nobody

Invariants: each address that a pod has is in exactly one reserved block of its node, and every reserved block is one
that v1 has given to a node of the cluster. So no pod of v2 gets an address that a pod of v1 has.

The blocks have neither owner nor finalizer, as those of the Go program: whoever replaces the last pod removes them.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.meta import ObjectMeta
from coil.crd.names import (
    LABEL_NODE,
    LABEL_POOL,
    LABEL_RESERVED,
    LABEL_VALUE_LENGTH,
    RESERVED,
    NodeName,
    PoolName,
    is_object_name,
)
from coil.crd.pool_validation import validate_disjoint, validate_pool
from coil.crd.validation import render_errors
from coil.ipam.layout import PoolLayout, block_name, parse_layout
from coil_migrator.v1_state import V1Block, V1Pool, V1State

SUFFIX = "-v1"
"""A block of v2 with the same index has the name without it."""


class ConversionError(ValueError):
    """v1's state has no counterpart in v2. Each of `faults` says what to do."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Conversion:
    """Pools by name, blocks by pool and index. `notes` tell what was left out, and why."""

    pools: tuple[AddressPool, ...]
    blocks: tuple[AddressBlock, ...]
    notes: tuple[str, ...]


def convert(state: V1State, nodes: Collection[NodeName]) -> Conversion:
    """The objects for a cluster with these nodes. Raises ConversionError with all that stands in the way.

    Left out are blocks of nodes that are no more, whose pods are no more either, and blocks of pools that are no more,
    from which v2 gives nothing.
    """
    pools = sorted((_convert_pool(pool) for pool in state.pools), key=lambda pool: pool.name)
    layouts, faults = _lay_out(pools)
    notes: list[str] = []
    known = frozenset(nodes)
    found: dict[IPv4Network, tuple[V1Block, int]] = {}
    for block in state.blocks:
        if (layout := layouts.get(block.pool)) is None:
            if block.pool not in {pool.name for pool in pools}:
                notes.append(f"left out {_describe(block)}: there is no such pool")
        elif (index := _find_index(layout, block.network)) is None:
            faults.append(f"{_describe(block)} is not a block of that pool: have `coilctl pool show` explain it")
        elif (other := found.setdefault(block.network, (block, index))[0]).node != block.node:
            faults.append(f"{_describe(block)} is the node {other.node}'s as well: remove it from one of them")
        elif len(block.node) > LABEL_VALUE_LENGTH:
            faults.append(f"{_describe(block)}: the node's name is longer than {LABEL_VALUE_LENGTH} characters")
    faults += _unaccounted(state, layouts, frozenset(found))
    if faults:
        raise ConversionError(faults)
    kept = [entry for entry in found.values() if entry[0].node in known]
    notes += [
        f"left out {_describe(block)}: there is no such node" for block, _ in found.values() if block.node not in known
    ]
    kept.sort(key=lambda entry: (entry[0].pool, entry[1]))
    return Conversion(tuple(pools), tuple(_render_block(block, index) for block, index in kept), tuple(notes))


def _convert_pool(pool: V1Pool) -> AddressPool:
    subnets = tuple(SubnetSet(ipv4=subnet) for subnet in pool.subnets)
    spec = AddressPoolSpec(block_size_bits=pool.block_size_bits, subnets=subnets)
    return AddressPool(metadata=ObjectMeta(name=pool.name), spec=spec)


def _lay_out(pools: list[AddressPool]) -> tuple[dict[PoolName, PoolLayout], list[str]]:
    """The layouts of the pools that v2 would take, and what it would say of the others."""
    layouts: dict[PoolName, PoolLayout] = {}
    faults: list[str] = []
    for position, pool in enumerate(pools):
        if not is_object_name(pool.name):
            faults.append(f"the pool {pool.name!r}: no object of Kubernetes can have this name")
            continue
        if errors := validate_pool(pool):
            faults.append(f"the pool {pool.name!r} is not valid in v2: {render_errors(errors)}")
        else:
            layouts[pool.name] = parse_layout(pool)
        faults += [
            f"the pool {pool.name!r} is not valid in v2: {error}" for error in validate_disjoint(pool, pools[:position])
        ]
    return layouts, faults


def _find_index(layout: PoolLayout, network: IPv4Network) -> int | None:
    """The index of the block with that network; None if the pool has none."""
    if network.prefixlen != 32 - layout.block_size_bits:
        return None
    before = 0
    for subnet in layout.subnets:
        if subnet.ipv4 is not None and network.subnet_of(subnet.ipv4):
            offset = int(network.network_address) - int(subnet.ipv4.network_address)
            return before + (offset >> layout.block_size_bits)
        before += subnet.blocks
    return None


def _unaccounted(state: V1State, layouts: dict[PoolName, PoolLayout], blocks: frozenset[IPv4Network]) -> Iterator[str]:
    """Addresses in use of which v1 says at the same time that their block is free: v2 would give them away."""
    sizes = {layout.block_size_bits for layout in layouts.values()}
    subnets = [subnet.ipv4 for layout in layouts.values() for subnet in layout.subnets if subnet.ipv4 is not None]
    for item in state.addresses:
        around = {IPv4Network((int(item.address) >> bits << bits, 32 - bits)) for bits in sizes}
        if around & blocks or not any(item.address in subnet for subnet in subnets):
            continue
        yield (
            f"{item} is in use, but no node has its block: end what uses it, "
            f"and free it with `coilctl address free {item.address}`"
        )


def _render_block(block: V1Block, index: int) -> AddressBlock:
    labels = {LABEL_POOL: block.pool, LABEL_NODE: block.node, LABEL_RESERVED: RESERVED}
    metadata = ObjectMeta(name=f"{block_name(block.pool, index)}{SUFFIX}", labels=labels)
    return AddressBlock(metadata=metadata, index=index, ipv4=str(block.network))


def _describe(block: V1Block) -> str:
    return f"the block {block.network} of the pool {block.pool!r} and the node {block.node!r}"
