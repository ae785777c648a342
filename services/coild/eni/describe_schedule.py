"""When EC2 is asked to describe the node's interfaces.

EC2 grants an account twenty descriptions of interfaces a second (EC2 Developer Guide, "Request throttling"): with 2 000
nodes, not even one a minute for each. So the metadata service is asked twice in the settings' `resync`, a minute by
default, which costs nothing. What it tells that EC2 never told is somebody else's change, and has EC2 asked at once; as
long as it tells nothing new, EC2 is asked every half hour, for what metadata do not show. While it is silent EC2 is
asked once in that period, or as often as it grants it: less often after each refusal, and the more often again the
longer it goes well.
"""

from collections.abc import Callable
from typing import Final

from coil.aws.metadata import MetadataInterface

CONFIRM_SECONDS: Final = 1800.0
"""Between two descriptions while the metadata service tells what is known."""
LONGEST_RESYNC: Final = 8
"""How many times the settings' period may pass between two descriptions while it is silent."""
FASTER: Final = 0.98
"""By which the time between two descriptions shrinks with each that is answered, after a refusal has doubled it. With
more nodes than EC2 grants descriptions for, some three of a hundred are refused."""


class DescribeSchedule:
    """One per process; asks nobody itself. `resync` is in seconds of the clock, `random` gives [0, 1)."""

    def __init__(self, *, resync: float, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._resync = resync
        self._clock = clock
        self._random = random
        self._due = float("-inf")
        self._seconds = resync
        self._hint: list[MetadataInterface] | None = None
        self._hinted = False
        """The metadata service is not silent."""
        self.described: float | None = None
        """When the last description was asked for."""
        self.doubt = True
        """Nobody knows what came of the last call; or EC2 has never been asked. Set by whoever had the call."""

    @property
    def left(self) -> float:
        """Seconds until the next description; 0 or less if it is due."""
        return 0.0 if self.doubt else self._due - self._clock()

    def succeeded(self, asked: float, *, again: float | None = None) -> None:
        """EC2 has described the interfaces, asked at that time. `again`: at most so many seconds after that, anew."""
        self.doubt = False
        self.described = asked
        self._seconds = max(self._resync, FASTER * self._seconds)
        self._put_off(CONFIRM_SECONDS if self._hinted else self._seconds)
        if again is not None:
            self._due = min(self._due, asked + again)

    def refused(self) -> float:
        """EC2 has been asked too often; returns for about how many seconds it is not asked."""
        self._seconds = min(LONGEST_RESYNC * self._resync, 2 * self._seconds)
        self._put_off(self._seconds)
        return self._seconds

    def note_metadata(self, *, answers: bool) -> bool:
        """Whether the metadata service answers. Returns whether EC2 is asked in its place, as it has fallen silent."""
        silent = self._hinted and not answers
        if silent:
            self._due = min(self._due, self._clock() + self._seconds)
        self._hinted = answers
        return silent

    def heed(self, found: list[MetadataInterface], *, known: bool) -> bool:
        """What the metadata service tells, and whether EC2 has told that.

        Returns whether EC2 is asked at once: for each thing that it never told, one time.
        """
        news = not known and found != self._hint
        self._hint = None if known else found
        if news:
            self._due = self._clock()
        return news

    def _put_off(self, seconds: float) -> None:
        self._due = self._clock() + seconds * (0.9 + 0.1 * self._random())
