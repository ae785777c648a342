"""How often EC2 may be asked: a token bucket for each kind of call, and one pause for all after a refusal.

EC2 counts the calls of a whole account and region in buckets of its own (EC2 Developer Guide, "Request throttling").
What a node takes from them, its neighbours do not get; so each node asks for less than would be granted to it alone,
and when EC2 refuses one call, all wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from coil.aws.error import ThrottledError

LONGEST_PAUSE = 60.0
FIRST_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Rate:
    """So many calls at once, and so many a second from then on."""

    burst: int
    per_second: float


@dataclass(slots=True)
class TokenBucket:
    """Tokens come at the rate's pace, up to its burst. Pure: `now` is the caller's clock, in seconds."""

    rate: Rate
    _tokens: float = field(init=False)
    _at: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        self._tokens = self.rate.burst

    def take(self, now: float) -> float:
        """Take one; returns in how many seconds it may be used, 0 for at once. Each later one is later by its share."""
        earned = (now - self._at) * self.rate.per_second
        self._tokens = min(self.rate.burst, self._tokens + earned) - 1
        self._at = now
        return max(0.0, -self._tokens / self.rate.per_second)


class CallBudget:
    """One per process. `sleep` and `clock` are the event loop's, `random` gives [0, 1)."""

    def __init__(
        self,
        rates: Mapping[str, Rate],
        *,
        default: Rate,
        clock: Callable[[], float],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._buckets = {call: TokenBucket(rate) for call, rate in rates.items()}
        self._default = default
        self._clock = clock
        self._random = random
        self._sleep = sleep
        self._refusals = 0
        self._until = float("-inf")

    async def enter(self, call: str) -> None:
        """Return when the call may be made. Cancelled, it has used up its place."""
        bucket = self._buckets.setdefault(call, TokenBucket(self._default))
        now = self._clock()
        wait = max(bucket.take(now), self._until - now)
        if wait > 0:
            await self._sleep(wait)

    def note(self, error: Exception | None) -> None:
        """What came of a call: after each refusal all wait twice as long as after the one before."""
        if isinstance(error, ThrottledError):
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._refusals)
            self._refusals = min(self._refusals + 1, 10)
            # A part is left to chance, or all nodes would come back in one instant.
            self._until = max(self._until, self._clock() + pause * (0.5 + self._random() / 2))
        elif error is None:
            self._refusals = 0

    @property
    def pause_left(self) -> float:
        """Seconds for which nobody asks."""
        return max(0.0, self._until - self._clock())
