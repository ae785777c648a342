"""What an admin reads about a pool: how much there is, how much is out, and what to mind. Pure.

Two conditions. `Ready` says whether the pool may give blocks at all: its spec is valid, no older pool has the same
addresses, nobody has deleted it. `Full` says whether there are any left, and in its reason whether that will be soon
(HasRoom, NearlyFull, Exhausted): one condition with three reasons, so that `kubectl get` shows the state in one column
and `kubectl wait --for=condition=Full=false` waits for room.

Everything is computed from the layout and a count, never block by block: a pool may have 2^59 of them.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import (
    MAX_COUNT,
    AddressPool,
    AddressPoolStatus,
    PoolCondition,
    PoolConditionType,
    PoolFill,
    Usage,
)
from coil.crd.field_error import render_names
from coil.ipam.layout import PoolLayout
from coil_ipam_controller.pool_supply import Standing, describe_exhaustion

GIVES_BLOCKS = "GivesBlocks"
NODES_NAMED = 5
"""Nodes that the message of a dying pool names."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Who keeps a pool from going."""

    blocks: int
    reserved: int
    by_node: tuple[tuple[str, int], ...]  # most blocks first

    @classmethod
    def of(cls, blocks: Iterable[AddressBlock]) -> "Holding":
        found = list(blocks)
        counts = Counter(block.node or "no node" for block in found)
        by_node = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return cls(len(found), sum(block.reserved for block in found), tuple(by_node))

    def __str__(self) -> str:
        named = render_names([f"{node} ({count})" for node, count in self.by_node], shown=NODES_NAMED)
        reserved = f", {self.reserved} of them reserved" if self.reserved else ""
        return f"{self.blocks} blocks remain{reserved}: {named}"


def plan_status(
    pool: AddressPool,
    standing: Standing,
    *,
    used: int,
    holding: Holding | None,
    nearly_full: int,
    now: datetime,
) -> AddressPoolStatus:
    """The status that the pool should have.

    `used` is the number of block indices that are taken; `holding` matters only for a pool that is being deleted.
    `nearly_full` is in percent of the blocks. Conditions of other types, by others, stay.
    """
    bits = max(pool.spec.block_size_bits, 0)
    total = 0 if standing.layout is None else standing.layout.size
    ours = (_ready(standing, holding), _full(standing.layout, used, nearly_full))
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


def _ready(standing: Standing, holding: Holding | None) -> PoolCondition:
    if standing.obstacle is None:
        return PoolCondition(type=PoolConditionType.READY, status="True", reason=GIVES_BLOCKS)
    message = standing.message if holding is None or not holding.blocks else f"{standing.message}; {holding}"
    return PoolCondition(type=PoolConditionType.READY, status="False", reason=str(standing.obstacle), message=message)


def _full(layout: PoolLayout | None, used: int, nearly_full: int) -> PoolCondition:
    if layout is None:
        return PoolCondition(type=PoolConditionType.FULL, status="Unknown", reason=PoolFill.UNKNOWN)
    if used >= layout.size:
        message = describe_exhaustion(layout)
        return PoolCondition(type=PoolConditionType.FULL, status="True", reason=PoolFill.EXHAUSTED, message=message)
    if used * 100 > layout.size * nearly_full:
        message = f"more than {nearly_full} % of the {layout.size} blocks of the pool {layout.pool!r} are in use"
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
