"""Kills programs in the middle of their work, at moments that a seed decides.

A kill is due some milliseconds after a certain number of operations have succeeded: so there is progress between two of
them, and something under way at each. Some are followed by another one, which meets the successor in its recovery.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random

from integration.apiserver.service import Service
from integration.apiserver.tally import Tally

_LONGEST_STEP = 300.0  # seconds without which a run makes progress: then it is over anyway
_IN_FLIGHT = 0.06  # seconds: several times what one operation takes
_RECOVERY = 1.5  # seconds from a start into the work


class Victim(Enum):
    """What is killed."""

    COILD = "coild"
    CONTROLLER = "coil-ipam-controller"


@dataclass(frozen=True, slots=True)
class Kill:
    """Due `delay` seconds after `successes` operations."""

    successes: int
    delay: float
    victim: Victim


def draw_kills(rng: Random, *, operations: int, counts: Mapping[Victim, int]) -> list[Kill]:
    """So many kills of each victim, spread over a run of so many operations, in their order."""
    kills: list[Kill] = []
    for victim, count in counts.items():
        for successes in sorted(rng.sample(range(5, operations), count)):
            kills.append(Kill(successes, rng.uniform(0, _IN_FLIGHT), victim))
            if victim is Victim.COILD and rng.random() < 0.25:
                kills.append(Kill(successes, rng.uniform(0, _RECOVERY), victim))
    return sorted(kills, key=lambda kill: kill.successes)


class Executioner:
    """Carries the kills out in a thread of its own; each victim is started again at once."""

    def __init__(self, kills: list[Kill], *, victims: Mapping[Victim, Service], tally: Tally) -> None:
        self._kills = kills
        self._victims = victims
        self._tally = tally
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="executioner")
        self._failure: Exception | None = None
        self.done: list[Kill] = []

    def __enter__(self) -> "Executioner":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            for kill in self._kills:
                while not self._tally.await_successes(kill.successes, timeout=0.2):
                    if self._stopped.is_set():
                        return
                time.sleep(kill.delay)
                self._victims[kill.victim].crash()
                self.done.append(kill)
        except Exception as error:
            self._failure = error
