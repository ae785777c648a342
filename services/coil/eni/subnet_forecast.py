"""When a subnet will have no address left, from how many it had during the last half hour. Pure.

The estimate is a straight line from the oldest look in the window to the last one. What nodes keep warm comes in
bursts, of an interface's addresses at a time, so a short past says nothing: before `SHORTEST_SPAN` there is no
estimate.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

WINDOW: Final = 1800.0
SHORTEST_SPAN: Final = 600.0
NEAR: Final = 3600.0
"""Who adds a subnet, or gives addresses back, needs about so long."""
MOST_LOOKS: Final = 120


@dataclass(frozen=True, slots=True)
class Look:
    """So many addresses were free at a moment of a monotonic clock, in seconds."""

    at: float
    free: int


class FreeHistory:
    """The looks at one subnet during the last `WINDOW` seconds, `MOST_LOOKS` of them at most."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque(maxlen=MOST_LOOKS)

    def note(self, look: Look) -> None:
        """Add a look, which is later than all others."""
        self._looks.append(look)
        while look.at - self._looks[0].at > WINDOW:
            self._looks.popleft()

    def consumption(self) -> float | None:
        """Addresses a second that were taken, below zero if they were given back; None while the past is too short."""
        if not self._looks or (span := self._looks[-1].at - self._looks[0].at) < SHORTEST_SPAN:
            return None
        return (self._looks[0].free - self._looks[-1].free) / span


def seconds_until_dry(free: int, consumption: float | None) -> float | None:
    """0 for a subnet that is dry, infinity for one of which nothing is taken, and None if nobody knows yet."""
    if free <= 0:
        return 0.0
    if consumption is None:
        return None
    return free / consumption if consumption > 0 else math.inf
