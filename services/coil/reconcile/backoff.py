"""How long to wait before the next attempt. Pure: whoever waits brings the clock and the randomness.

Used by the informer (between broken lists and watches), the work queue (per key) and the leader
election. Jitter is what keeps a hundred nodes from returning to a restarted API server in one instant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from coil.kube.errors import ApiError, UnavailableError


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


# A watch that lived this long was a good one.
GOOD_WATCH_SECONDS = 5.0
# A server that asks for more patience than this is asked again all the same.
LONGEST_RETRY_AFTER = 60.0
# So many watches in a row, accepted and without an event, cost the place.
FRUITLESS_WATCHES = 5


class Step(Enum):
    LIST = "list"
    WATCH = "watch"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a watch, or of the list before it. `fault` is None if the server ended it properly."""

    lived: float  # seconds, of the watch
    accepted: bool = False
    events: int = 0
    fault: ApiError | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Wait `delay` seconds and take the next step; LIST says that the place is lost."""

    delay: float
    step: Step


class WatchBackoff:
    """How soon an informer tries again, and whether from the old place: the decision, without the waiting.

    A good watch that ended by itself is followed at once; everything else is followed after a backoff. The backoff
    starts anew after a good watch, and after one that brought events and can be resumed. So a stream that breaks
    after each event is slow, and one that breaks at once, or needs a list each time, is slower each time: there
    is no answer of a server, however wrong, that makes a busy loop.

    The place to resume from is lost when the server says so (410) or refuses the watch. It is given up as well
    when watch after watch is accepted and brings nothing: perhaps it is this place that the server cannot serve.

    Remembers how often in a row it went wrong. `random` gives [0, 1)."""

    def __init__(self, backoff: Backoff, random: Callable[[], float]) -> None:
        self._backoff = backoff
        self._random = random
        self._fruitless = 0
        self.failures = 0

    def decide(self, outcome: Outcome) -> Verdict:
        """What to do after `outcome`; counts it."""
        fault = outcome.fault
        step = Step.WATCH if fault is None or isinstance(fault, UnavailableError) else Step.LIST
        good = outcome.accepted and outcome.lived >= GOOD_WATCH_SECONDS
        if good or (outcome.events and step is Step.WATCH):
            self.failures = self._fruitless = 0
        elif outcome.accepted:
            self._fruitless += 1
        if good and fault is None:
            return Verdict(0.0, Step.WATCH)
        if self._fruitless >= FRUITLESS_WATCHES:
            step, self._fruitless = Step.LIST, 0
        delay = self._backoff.delay(self.failures, self._random)
        self.failures += 1
        if fault is not None and fault.retry_after is not None:
            delay = max(delay, min(fault.retry_after, LONGEST_RETRY_AFTER))
        return Verdict(delay, step)
