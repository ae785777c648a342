"""Which pools can give blocks: the rules of a pool by itself, and its peace with the other pools. Pure."""

from collections.abc import Iterable

from coil.crd.address_pool import AddressPool
from coil.crd.block_request import RefusalReason, Refused
from coil.crd.field_error import render_errors
from coil.crd.pool_validation import validate_disjoint, validate_pool
from coil.ipam.layout import PoolLayout, parse_layout


def judge_pool(pool: AddressPool, others: Iterable[AddressPool]) -> PoolLayout | Refused:
    """The pool's layout, or why it gives no blocks.

    Of two pools that overlap, only the older one gives blocks: were it both, two pods could get one address, and
    were it neither, a mistyped new pool would stop one that works.
    """
    name = pool.metadata.name
    if pool.metadata.deleting:
        return Refused(RefusalReason.OUT_OF_BLOCKS, f"the pool {name!r} is being deleted")
    errors = validate_pool(pool) or validate_disjoint(pool, (other for other in others if _older(other, pool)))
    if errors:
        return Refused(RefusalReason.INVALID_POOL, f"the pool {name!r} is invalid: {render_errors(errors)}")
    return parse_layout(pool)


def _older(left: AddressPool, right: AddressPool) -> bool:
    return _age(left) < _age(right)


def _age(pool: AddressPool) -> tuple[str, str]:
    # ISO timestamps in UTC order as text. A pool without one has not been stored yet, so it comes last.
    created = pool.metadata.creation_timestamp
    return ("~" if created is None else created.isoformat(), pool.metadata.name)
