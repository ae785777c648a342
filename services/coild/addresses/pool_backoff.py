"""Which pools gave no block, why, and until when they are not asked again. Part of
`coild.addresses.block_requester`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from coil.crd.names import PoolName
from coil.reconcile.backoff import Backoff

SPARE_BACKOFF = Backoff(base=30.0, cap=600.0)
"""How long a pool that refused is not asked for mere spare addresses: there may be thousands of nodes that would."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Times are those of the book's clock. `spare_until` is for requests that no pod waits for."""

    reason: str
    since: float
    until: float
    spare_until: float
    attempts: int


@dataclass(slots=True)
class PoolBackoff:
    """One entry per pool that refused last; the next refusal lasts longer, until the pool gives a block."""

    backoff: Backoff
    rng: Random
    clock: Callable[[], float]
    _refusals: dict[PoolName, Refusal] = field(default_factory=dict)

    def refuse(self, pool: PoolName, reason: str) -> Refusal:
        """Note a refusal. It is not for those of requests that were under way together: they count as one."""
        now = self.clock()
        known = self._refusals.get(pool)
        attempts = 0 if known is None else known.attempts + 1
        refusal = Refusal(
            reason=reason,
            since=now,
            until=now + self.backoff.delay(attempts, self.rng.random),
            spare_until=now + SPARE_BACKOFF.delay(attempts, self.rng.random),
            attempts=attempts,
        )
        self._refusals[pool] = refusal
        return refusal

    def forgive(self, pool: PoolName, *, asked: float) -> None:
        """The pool gave a block to a request made at `asked`. One made before the refusal proves nothing."""
        refusal = self._refusals.get(pool)
        if refusal is not None and refusal.since <= asked:
            del self._refusals[pool]

    def current(self, pool: PoolName) -> Refusal | None:
        """The refusal, while it lasts: whoever needs an address now is told so."""
        refusal = self._refusals.get(pool)
        return refusal if refusal is not None and self.clock() < refusal.until else None

    def is_doubtful(self, pool: PoolName) -> bool:
        """Whether the pool refused last, however long ago."""
        return pool in self._refusals

    def spare_until(self, pool: PoolName) -> float:
        """Until when the pool is not asked for spare addresses; −∞ without a refusal."""
        refusal = self._refusals.get(pool)
        return float("-inf") if refusal is None else refusal.spare_until
