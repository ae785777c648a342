"""Which pools can give blocks: the rules of a pool by itself, and its peace with the other pools. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from coil.crd.address_pool import AddressPool, PoolObstacle
from coil.crd.block_request import RefusalReason, Refused
from coil.crd.field_error import render_errors
from coil.crd.pool_validation import validate_disjoint
from coil.ipam.layout import InvalidPoolError, PoolLayout, parse_layout


@dataclass(frozen=True, slots=True)
class Standing:
    """A pool's layout (None: it has none), and why it gives no blocks all the same (None: it does)."""

    layout: PoolLayout | None
    obstacle: PoolObstacle | None = None
    message: str = ""


def assess_pool(pool: AddressPool, others: Iterable[AddressPool]) -> Standing:
    """What the pool is good for.

    Of two pools that overlap, only the older one gives blocks: were it both, two pods could get one address, and
    were it neither, a mistyped new pool would stop one that works.
    """
    name = pool.metadata.name
    try:
        layout = parse_layout(pool)
    except InvalidPoolError as error:
        if pool.metadata.deleting:
            return Standing(None, PoolObstacle.DELETING, f"the pool {name!r} is being deleted")
        return Standing(None, PoolObstacle.INVALID, f"the pool {name!r} is invalid: {error}")
    if pool.metadata.deleting:
        return Standing(layout, PoolObstacle.DELETING, f"the pool {name!r} is being deleted")
    if errors := validate_disjoint(pool, (other for other in others if _older(other, pool))):
        return Standing(layout, PoolObstacle.OVERLAPS, f"the pool {name!r} is invalid: {render_errors(errors)}")
    return Standing(layout)


def judge_pool(pool: AddressPool, others: Iterable[AddressPool]) -> PoolLayout | Refused:
    """The pool's layout, or the answer to a request for one of its blocks."""
    standing = assess_pool(pool, others)
    if standing.obstacle is PoolObstacle.DELETING:
        return Refused(RefusalReason.OUT_OF_BLOCKS, standing.message)
    if standing.obstacle is not None or standing.layout is None:
        return Refused(RefusalReason.INVALID_POOL, standing.message)
    return standing.layout


def describe_exhaustion(layout: PoolLayout) -> str:
    return f"all {layout.size} blocks of the pool {layout.pool!r} are in use"


def _older(left: AddressPool, right: AddressPool) -> bool:
    return _age(left) < _age(right)


def _age(pool: AddressPool) -> tuple[str, str]:
    # ISO timestamps in UTC order as text. A pool without one has not been stored yet, so it comes last.
    created = pool.metadata.creation_timestamp
    return ("~" if created is None else created.isoformat(), pool.metadata.name)
