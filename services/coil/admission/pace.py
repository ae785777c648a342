"""How soon the keeper looks again: the decision, without the waiting. Pure.

Three outcomes, three paces. Nothing to do: after the period, less a tenth by chance, so that replicas do not walk in
step. Something failed: soon, then less and less often, up to the period. Something was written: after the period,
and twice as late for each further look in a row that had to write, up to an hour. So whatever writes against us, a
replica whose clock is a century off or a controller that puts its own bundle back, no answer makes a busy loop.
"""

from collections.abc import Callable
from enum import Enum

from coil.reconcile.backoff import Backoff

FIRST_RETRY = 1.0
LONGEST_PAUSE = 3600.0
_JITTER = 0.1


class Outcome(Enum):
    QUIET = "quiet"
    WROTE = "wrote"
    FAILED = "failed"


class KeeperPace:
    """Remembers how often in a row it went the same way. `period` is in seconds; `random` gives [0, 1)."""

    def __init__(self, period: float, random: Callable[[], float]) -> None:
        self._quiet = Backoff(base=period, cap=period, jitter=_JITTER)
        self._failed = Backoff(base=min(FIRST_RETRY, period), cap=period)
        self._wrote = Backoff(base=period, cap=max(period, LONGEST_PAUSE), jitter=_JITTER)
        self._random = random
        self._failures = 0
        self._writes = 0

    def judge(self, outcome: Outcome) -> float:
        """Seconds to wait after `outcome`; counts it."""
        if outcome is Outcome.FAILED:
            delay = self._failed.delay(self._failures, self._random)
            self._failures += 1
            return delay
        self._failures = 0
        if outcome is Outcome.WROTE:
            delay = self._wrote.delay(self._writes, self._random)
            self._writes += 1
            return delay
        self._writes = 0
        return self._quiet.delay(0, self._random)
