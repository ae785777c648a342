"""How long to wait before the next attempt. Pure: whoever waits brings the clock and the randomness.

Used by the informer (between broken lists and watches), the work queue (per key) and the leader
election. Jitter is what keeps a hundred nodes from returning to a restarted API server in one instant.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential growth from `base` to `cap` seconds.

    `jitter` is the part of each delay that is left to chance: attempt n waits between
    `(1 - jitter) * d` and `d`, where d = min(cap, base * factor**n). So `cap` is never exceeded.
    """

    base: float
    cap: float
    factor: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.base <= self.cap:
            raise ValueError(f"a backoff needs 0 < base <= cap, not base={self.base} cap={self.cap}")
        if self.factor < 1:
            raise ValueError(f"a backoff that shrinks is none: factor={self.factor}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is a share of the delay, between 0 and 1, not {self.jitter}")

    def delay(self, attempt: int, random: Callable[[], float]) -> float:
        """Seconds before the retry after failure number `attempt`, counted from 0.

        `random` gives a number in [0, 1), like `random.Random().random`.
        """
        try:
            grown = self.base * self.factor**attempt
        except OverflowError:  # 2.0**1024: a key that has failed for days, not an error
            grown = self.cap
        longest = min(self.cap, grown)
        return longest * (1 - self.jitter * random())
