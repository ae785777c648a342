"""How many of a node's addresses have been too many for a while. Pure: `now` is the caller's clock, in seconds.

Why a while: what is given back and needed again costs five calls for an interface and two for an address, of a budget
that all nodes of an account share; EC2 grants 2 000 nodes some five assignments a second. Jobs come every few minutes,
a rolling update takes pods away and brings their successors within one, and addresses cool down in between. So what was
superfluous all through `SURPLUS_SECONDS` is not part of any such wave. At a load that comes again within that time the
smallest surplus is none, and nothing is given back that is fetched again.
"""

from dataclasses import dataclass, field
from typing import Final

SURPLUS_SECONDS: Final = 600.0


@dataclass(slots=True)
class SurplusWindow:
    """The smallest surplus within the window. To be told of each change, in order of time."""

    seconds: float = SURPLUS_SECONDS
    _steps: list[tuple[float, int]] = field(default_factory=list)
    """(t, n): since t there were never fewer than n too many. Both rise from step to step."""

    def note(self, surplus: int, *, now: float) -> None:
        """So many are too many from now on; negative: so many are missing."""
        since = now
        while self._steps and self._steps[-1][1] >= surplus:
            since, _ = self._steps.pop()
        self._steps.append((since, surplus))

    def lasting(self, *, now: float) -> int:
        """How many were too many all the time; 0 before a whole window has passed."""
        lasting = [surplus for since, surplus in self._steps if since <= now - self.seconds]
        return max(0, *lasting[-1:], 0)

    def next_lasting(self, *, now: float) -> float | None:
        """In how many seconds more will have lasted than has now; None if nothing will."""
        ends = [since + self.seconds - now for since, surplus in self._steps if surplus > 0]
        return min((left for left in ends if left > 0), default=None)
