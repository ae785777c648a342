"""Kills programs in the middle of their work, at moments that a seed decides.

A kill is due after a certain number of operations have succeeded: so there is progress between two of them, and
something under way at each. It strikes some milliseconds after a moment at which its victim has begun something. Some
kills of coild are followed by another one, which meets the successor in its recovery. The first death of coild lasts
until an operation has failed, so that one does, however fast a successor is there on this machine.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random

from integration.apiserver.tally import Tally
from integration.service import Service
from integration.side_thread import SideThread

_RECOVERY = 1.5  # seconds from a start into the work
_LULL = 10.0  # seconds to wait for a moment; when it does not come, the victim dies idle
_HIT = 60.0  # seconds to wait for an operation that fails; only where nothing is under way does none
_LOOK = 0.001  # seconds between two looks at whether it has come


class Victim(Enum):
    """What is killed."""

    COILD = "coild"
    CONTROLLER = "coil-ipam-controller"


class Moment(Enum):
    """What a kill waits for. The value is how long the victim may still have to do with it, in seconds."""

    OPERATION = 0.03
    """A CNI operation has ended, and others have not."""
    PROMISE = 0.012
    """A request for a block has been promised one, which is about to be created. Nobody does that but a leader."""
    BLOCK = 0.005
    """A block has been created; the answer to its request is about to follow."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Due at the first `moment` after so many operations, strikes `delay` seconds after it."""

    successes: int
    victim: Victim
    moment: Moment
    delay: float


def draw_kills(rng: Random, *, operations: int, counts: Mapping[Victim, int]) -> list[Kill]:
    """So many kills of each victim, spread over a run of so many operations, in their order."""
    kills: list[Kill] = []
    for victim, count in counts.items():
        for successes in sorted(rng.sample(range(5, operations), count)):
            moment = rng.choice((Moment.PROMISE, Moment.BLOCK)) if victim is Victim.CONTROLLER else Moment.OPERATION
            kills.append(Kill(successes, victim, moment, rng.uniform(0, moment.value)))
            if victim is Victim.COILD and rng.random() < 0.25:
                kills.append(Kill(successes, victim, moment, rng.uniform(0, _RECOVERY)))
    return sorted(kills, key=lambda kill: kill.successes)


class Executioner(SideThread):
    """Carries the kills out; each victim is started again at once, but for the first coild.

    `counts` gives for a moment how often it has come; nobody counts operations here but the tally.
    """

    def __init__(
        self,
        kills: list[Kill],
        *,
        victims: Mapping[Victim, Service],
        counts: Mapping[Moment, Callable[[], int]],
        tally: Tally,
    ) -> None:
        super().__init__("executioner")
        self._kills = kills
        self._victims = victims
        self._counts = counts
        self._tally = tally
        self.done: list[Kill] = []

    def work(self) -> None:
        for kill in self._kills:
            while not self._tally.await_successes(kill.successes, timeout=0.2):
                if self.stopped.is_set():
                    return
            if (count := self._counts.get(kill.moment)) is not None:
                self._await_moment(count)
            time.sleep(kill.delay)
            victim, failures = self._victims[kill.victim], self._tally.failures
            victim.kill()
            if kill.victim is Victim.COILD and not any(done.victim is Victim.COILD for done in self.done):
                self._tally.await_failures(failures + 1, timeout=_HIT)
            victim.start()
            self.done.append(kill)

    def _await_moment(self, count: Callable[[], int]) -> None:
        before, deadline = count(), time.monotonic() + _LULL
        while count() == before and time.monotonic() < deadline:
            time.sleep(_LOOK)
