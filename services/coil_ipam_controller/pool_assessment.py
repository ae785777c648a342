"""Which pools can give blocks, why others cannot, and the Events that say so.

A pool must have no faults, and blocks that share addresses with an older pool are not given. The Events are here so
that the reconcilers which find a pool unusable report it in the same words: no message has a count that changes, so
repetitions become one Event with a growing count.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import (
    ADDRESS_POOLS,
    AddressPool,
    AddressPoolStatus,
    PoolCondition,
    PoolConditionType,
    PoolDegradation,
    PoolFill,
    PoolObstacle,
)
from coil.crd.block_request import RefusalReason, Refused
from coil.crd.names import BlockName, PoolName
from coil.crd.pool_validation import find_mixed_families, older_pools, validate_disjoint
from coil.crd.validation import FieldError, render_errors, render_names
from coil.ipam.layout import InvalidPoolError, PoolLayout, parse_layout
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject

NODES_NAMED = 5
"""Nodes that the message of a pool being deleted names."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A pool's layout (None: it has none), and why it gives no blocks all the same (None: it does).

    `degraded` is the condition of a pool that breaks rules and gives blocks nevertheless.
    """

    layout: PoolLayout | None
    obstacle: PoolObstacle | None = None
    message: str = ""
    degraded: PoolCondition | None = None


@dataclass(frozen=True, slots=True)
class RemainingBlocks:
    """The blocks that keep a pool from being deleted."""

    blocks: int
    reserved: int
    by_node: tuple[tuple[str, int], ...]  # most blocks first

    @classmethod
    def of(cls, blocks: Iterable[AddressBlock]) -> "RemainingBlocks":
        found = list(blocks)
        counts = Counter(block.node or "no node" for block in found)
        by_node = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return cls(len(found), sum(block.reserved for block in found), tuple(by_node))

    def __str__(self) -> str:
        named = render_names([f"{node} ({count})" for node, count in self.by_node], shown=NODES_NAMED)
        reserved = f", {self.reserved} of them reserved" if self.reserved else ""
        return f"{self.blocks} blocks remain{reserved}: {named}"


def assess_pool(pool: AddressPool, others: Iterable[AddressPool]) -> Standing:
    """Whether the pool gives blocks, and why not all or none.

    Of two pools that overlap only the older one gives blocks with addresses of both: if both did, two pods could get
    the same address, and if neither did, a mistyped new pool would stop one that works.
    """
    name = pool.metadata.name
    if pool.metadata.deleting:
        return Standing(_layout_of(pool), PoolObstacle.DELETING, f"the pool {name!r} is being deleted")
    older = older_pools(pool, others)
    try:
        layout = parse_layout(pool, older)
    except InvalidPoolError as error:
        return Standing(None, PoolObstacle.INVALID, f"the pool {name!r} is invalid: {error}")
    if layout.capacity() == 0:
        obstacle = PoolObstacle.OVERLAPS if validate_disjoint(pool, older) else PoolObstacle.INVALID
        return Standing(layout, obstacle, f"the pool {name!r} is invalid: {render_errors(layout.conflicts)}")
    return Standing(layout, degraded=_find_degradation(layout, find_mixed_families(pool)))


def _find_degradation(layout: PoolLayout, mixed: Sequence[FieldError]) -> PoolCondition | None:
    reason = PoolDegradation.CONFLICTS if layout.conflicts else PoolDegradation.MIXED_FAMILIES
    told: list[str] = []
    if layout.conflicts:
        told.append(f"{render_errors(layout.conflicts)}; blocks with these addresses are not given")
    if mixed:
        told.append(f"{render_errors(mixed)}; the families of a pod's addresses depend on its block")
    if not told:
        return None
    return PoolCondition(type=PoolConditionType.DEGRADED, status="True", reason=reason, message="; ".join(told))


def check_pool(pool: AddressPool, others: Iterable[AddressPool]) -> PoolLayout | Refused:
    """The pool's layout, or the answer to a request for one of its blocks."""
    standing = assess_pool(pool, others)
    if standing.obstacle is PoolObstacle.DELETING:
        return Refused(RefusalReason.OUT_OF_BLOCKS, standing.message)
    if standing.obstacle is not None or standing.layout is None:
        return Refused(RefusalReason.INVALID_POOL, standing.message)
    return standing.layout


def describe_exhaustion(pool: PoolName, blocks: int) -> str:
    return f"all {blocks} blocks of the pool {pool!r} are in use"


def report_exhausted(recorder: Recorder, pool: AddressPool, why: str) -> None:
    """There is no block for a node that asks for one. `why` is the message of the request's own answer."""
    message = f"{why}: append a subnet to it, or delete pods and nodes that are no longer needed"
    recorder.warn(_subject(pool), reason="PoolExhausted", message=message)


def report_unusable(recorder: Recorder, pool: AddressPool, why: str) -> None:
    """The pool gives no blocks, because it is invalid or overlaps an older one."""
    recorder.warn(_subject(pool), reason="PoolGivesNoBlocks", message=why)


def report_passed_over(recorder: Recorder, pool: AddressPool, index: BlockName, holder: BlockName) -> None:
    """An index is free, but its addresses are in a block that should not exist."""
    message = f"{index} cannot be allocated: its addresses are in the block {holder}"
    recorder.warn(_subject(pool), reason="IndexPassedOver", message=message)


def report_in_use(recorder: Recorder, pool: AddressPool, remaining: RemainingBlocks) -> None:
    """The pool was deleted and waits until its blocks are released."""
    message = f"the pool will be deleted once its blocks are released; {remaining}"
    recorder.note(_subject(pool), reason="PoolInUse", message=message)


def report_change(recorder: Recorder, pool: AddressPool, status: AddressPoolStatus) -> None:
    """Report what is new in `status`, compared with the pool's status before."""
    ready_before, ready = (of.condition(PoolConditionType.READY) for of in (pool.status, status))
    if ready is not None and (ready_before is None or ready_before.reason != ready.reason):
        if ready.reason in {PoolObstacle.INVALID, PoolObstacle.OVERLAPS}:
            report_unusable(recorder, pool, ready.message)
        elif ready.status == "True" and ready_before is not None:
            recorder.note(_subject(pool), reason="PoolReady", message="the pool gives blocks again")
    occupied_before, occupied = (of.condition(PoolConditionType.OCCUPIED) for of in (pool.status, status))
    known = "" if occupied_before is None else occupied_before.message
    if occupied is not None and occupied.message not in ("", known):
        recorder.warn(_subject(pool), reason="PoolOccupied", message=occupied.message)
    degraded_before, degraded = (of.condition(PoolConditionType.DEGRADED) for of in (pool.status, status))
    known = "" if degraded_before is None else degraded_before.message
    if degraded is not None and degraded.message not in ("", known):
        recorder.warn(_subject(pool), reason="PoolDegraded", message=degraded.message)
    full_before, full = (of.condition(PoolConditionType.FULL) for of in (pool.status, status))
    before = PoolFill.HAS_ROOM if full_before is None else full_before.reason
    if full is None or full.reason == before or pool.metadata.deleting:
        return
    match full.reason:
        case PoolFill.EXHAUSTED:
            report_exhausted(recorder, pool, full.message)
        case PoolFill.NEARLY_FULL:
            recorder.warn(_subject(pool), reason="PoolNearlyFull", message=full.message)
        case PoolFill.HAS_ROOM if before in {PoolFill.EXHAUSTED, PoolFill.NEARLY_FULL}:
            recorder.note(_subject(pool), reason="PoolHasRoom", message="there is room in the pool again")


def _subject(pool: AddressPool) -> EventSubject:
    return EventSubject.of(ADDRESS_POOLS, pool.metadata)


def _layout_of(pool: AddressPool) -> PoolLayout | None:
    try:
        return parse_layout(pool)
    except InvalidPoolError:
        return None
