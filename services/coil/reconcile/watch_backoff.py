"""How soon an informer tries again, and whether from the old place: the decision, without the waiting. Pure.

A good watch that ended by itself is followed at once; everything else is followed after a backoff. The backoff
starts anew after a good watch, and after one that brought events and can be resumed. So a stream that breaks
after each event is slow, and one that breaks at once, or needs a list each time, is slower each time: there
is no answer of a server, however wrong, that makes a busy loop.

The place to resume from is lost when the server says so (410) or refuses the watch. It is given up as well
when watch after watch is accepted and brings nothing: perhaps it is this place that the server cannot serve.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from coil.kube.errors import ApiError, UnavailableError
from coil.reconcile.backoff import Backoff

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
    """Remembers how often in a row it went wrong. `random` gives [0, 1)."""

    def __init__(self, backoff: Backoff, random: Callable[[], float]) -> None:
        self._backoff = backoff
        self._random = random
        self._fruitless = 0
        self.failures = 0

    def judge(self, outcome: Outcome) -> Verdict:
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
