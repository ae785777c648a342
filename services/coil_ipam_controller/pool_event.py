"""What people are told of pools by Events, in one place, so that two reconcilers say the same in the same words.

The messages hold no counts that change, so that repetitions become one Event with a growing count.
"""

from coil.crd.address_pool import (
    ADDRESS_POOLS,
    AddressPool,
    AddressPoolStatus,
    PoolConditionType,
    PoolFill,
    PoolObstacle,
)
from coil.crd.names import BlockName
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coil_ipam_controller.pool_status import Holding


def tell_exhausted(recorder: Recorder, pool: AddressPool, why: str) -> None:
    """Somebody asked for a block, or is going to, and there is none. `why` as for the request's own answer."""
    message = f"{why}: append a subnet to it, or delete pods and nodes that are no longer needed"
    recorder.warn(_subject(pool), reason="PoolExhausted", message=message)


def tell_useless(recorder: Recorder, pool: AddressPool, why: str) -> None:
    """The pool gives no blocks, because it is invalid or overlaps an older one."""
    recorder.warn(_subject(pool), reason="PoolGivesNoBlocks", message=why)


def tell_passed_over(recorder: Recorder, pool: AddressPool, index: BlockName, holder: BlockName) -> None:
    """An index is free, but its addresses are in a block that should not be there."""
    message = f"{index} is not given to anybody, because its addresses are in the block {holder}"
    recorder.warn(_subject(pool), reason="IndexPassedOver", message=message)


def tell_held(recorder: Recorder, pool: AddressPool, holding: Holding) -> None:
    """The pool was deleted and waits for its blocks."""
    message = f"the pool is being deleted and goes with its last block; {holding}"
    recorder.note(_subject(pool), reason="PoolInUse", message=message)


def tell_change(recorder: Recorder, pool: AddressPool, status: AddressPoolStatus) -> None:
    """What `status` has that is worth telling and that the pool's status before had not."""
    ready_before, ready = (of.condition(PoolConditionType.READY) for of in (pool.status, status))
    if ready is not None and (ready_before is None or ready_before.reason != ready.reason):
        if ready.reason in {PoolObstacle.INVALID, PoolObstacle.OVERLAPS}:
            tell_useless(recorder, pool, ready.message)
        elif ready.status == "True" and ready_before is not None:
            recorder.note(_subject(pool), reason="PoolReady", message="the pool gives blocks again")
    full_before, full = (of.condition(PoolConditionType.FULL) for of in (pool.status, status))
    before = PoolFill.HAS_ROOM if full_before is None else full_before.reason
    if full is None or full.reason == before or pool.metadata.deleting:
        return
    match full.reason:
        case PoolFill.EXHAUSTED:
            tell_exhausted(recorder, pool, full.message)
        case PoolFill.NEARLY_FULL:
            recorder.warn(_subject(pool), reason="PoolNearlyFull", message=full.message)
        case PoolFill.HAS_ROOM if before in {PoolFill.EXHAUSTED, PoolFill.NEARLY_FULL}:
            recorder.note(_subject(pool), reason="PoolHasRoom", message="there is room in the pool again")


def _subject(pool: AddressPool) -> EventSubject:
    return EventSubject.of(ADDRESS_POOLS, pool.metadata)
