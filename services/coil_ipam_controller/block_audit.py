"""Whether an AddressBlock is as it should be, and what may be repaired without a decision by an admin. Pure.

What can be trusted of a block that was edited: its name, because nothing can change it; through it the index
(`<pool>-<index>`); and through the pool's layout, which never changes either, the networks. Which node has the block is
recorded in the label of the node and nowhere else.

What may be repaired: the owner reference and the finalizer, and only if everything else agrees. They protect the block
and change nothing for any pod. Networks, index and labels are never repaired and no block is deleted: only the node
knows which of two claims its pods rely on. A reserved block belongs to a program that Coil does not know; it may have
any name, and is never repaired.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.cidr import parse_ipv4_cidr, parse_ipv6_cidr
from coil.crd.meta import OwnerReference, with_finalizer
from coil.crd.names import FINALIZER, GROUP, LABEL_NODE, LABEL_POOL
from coil.ipam.layout import PlannedBlock, PoolLayout, parse_block_index


class BlockFault(StrEnum):
    """Reasons of the Events about a block."""

    NO_POOL = "NoPool"
    NO_NODE = "NoNode"
    NODE_CHANGED = "NodeChanged"
    NODE_GONE = "NodeGone"
    FOREIGN_NAME = "ForeignName"
    CONTRADICTS_POOL = "ContradictsPool"
    RELEASED_LATE = "ReleasedLate"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault that an admin has to look at."""

    fault: BlockFault
    message: str


def examine_block(block: AddressBlock, pool: AddressPool | None, layout: PoolLayout | None) -> tuple[Finding, ...]:
    """What is wrong with the block. `pool` is the one that its label names; `layout` is None if it is invalid.

    With an invalid pool there is nothing to compare with; that is reported on the pool.
    """
    return tuple(_findings(block, pool, layout))


def is_unprotected(block: AddressBlock, pool: AddressPool) -> bool:
    """Whether the finalizer or the owner reference is missing."""
    return FINALIZER not in block.metadata.finalizers or not _owned(block, pool)


def plan_protection(block: AddressBlock, pool: AddressPool) -> dict[str, Any]:
    """The merge patch that adds what is missing. Conflicts when the block has changed.

    A reference to an earlier pool of that name, as a restored backup has it, is replaced: Kubernetes' collector
    would delete the block for it. Whatever concerns others stays.
    """
    owners = list(block.metadata.owner_references)
    if not _owned(block, pool):
        owners = [owner for owner in owners if not (_is_pool(owner) and owner.name == pool.name)]
        ours = OwnerReference(
            api_version=ADDRESS_POOLS.api_version,
            kind=ADDRESS_POOLS.kind,
            name=pool.name,
            uid=pool.metadata.uid,
            controller=not any(owner.controller for owner in owners),
            block_owner_deletion=True,
        )
        owners.append(ours)
    return {
        "metadata": {
            "resourceVersion": block.metadata.resource_version,
            "finalizers": with_finalizer(block.metadata.finalizers),
            "ownerReferences": msgspec.to_builtins(owners),
        }
    }


def _findings(block: AddressBlock, pool: AddressPool | None, layout: PoolLayout | None) -> Iterator[Finding]:
    if not block.pool:
        yield Finding(BlockFault.NO_POOL, f"has no label {LABEL_POOL}: no pool counts its addresses as taken")
    elif pool is None:
        yield Finding(BlockFault.NO_POOL, f"names the pool {block.pool!r}, which does not exist")
    if not block.node:
        yield Finding(BlockFault.NO_NODE, f"has no label {LABEL_NODE}: nobody uses its addresses or gives it back")
    if pool is None or layout is None or block.reserved:
        return
    index = parse_block_index(pool.name, block.name)
    if index is None:
        message = f"is labelled as one of the pool {pool.name!r}, whose blocks are named {pool.name}-<index>"
        yield Finding(BlockFault.FOREIGN_NAME, message)
    elif index >= layout.size:
        message = f"by its name it has the index {index}, but the pool {pool.name!r} has {layout.size} blocks"
        yield Finding(BlockFault.CONTRADICTS_POOL, message)
    elif not _agrees(block, planned := layout.block_at(index)):
        message = (
            f"by its name it is {_networks(planned)} (index {index}), but it says {_networks(block)} (index "
            f"{block.index}). Pods on the node {block.node!r} may use addresses of either: undo the edit, or "
            f"remove these pods"
        )
        yield Finding(BlockFault.CONTRADICTS_POOL, message)


def _agrees(block: AddressBlock, planned: PlannedBlock) -> bool:
    if block.index != planned.index:
        return False
    # As text first, as this concerns every block that there is; parsed, networks may be spelt in any way.
    written = planned.ipv4 and str(planned.ipv4), planned.ipv6 and str(planned.ipv6)
    if (block.ipv4, block.ipv6) == written:
        return True
    try:
        networks = block.ipv4 and parse_ipv4_cidr(block.ipv4), block.ipv6 and parse_ipv6_cidr(block.ipv6)
    except ValueError:
        return False
    return networks == (planned.ipv4, planned.ipv6)


def _networks(block: AddressBlock | PlannedBlock) -> str:
    return " and ".join(str(network) for network in (block.ipv4, block.ipv6) if network) or "no network"


def _owned(block: AddressBlock, pool: AddressPool) -> bool:
    return any(owner.uid == pool.metadata.uid for owner in block.metadata.owner_references)


def _is_pool(owner: OwnerReference) -> bool:
    return owner.kind == ADDRESS_POOLS.kind and owner.api_version.startswith(f"{GROUP}/")
