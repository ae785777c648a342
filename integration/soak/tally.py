"""How many operations of each kind came to which end. Thread-safe."""

import threading
from collections import Counter
from enum import Enum


class Operation(Enum):
    """One execution of the plugin, by what is asked of it."""

    ADD = "ADD"
    ADD_AGAIN = "repeated ADD"
    ADD_RACE = "concurrent ADD"
    ADD_NOWHERE = "ADD in a vanished namespace"
    CHECK = "CHECK"
    CHECK_GONE = "CHECK of a deleted pod"
    DEL = "DEL"
    DEL_AGAIN = "repeated DEL"
    DEL_UNKNOWN = "DEL of an unknown pod"
    KILLED = "killed in its middle"


class Outcome(Enum):
    """DONE: what was to be expected of the operation, a refusal included."""

    DONE = "done"
    LATER = "told to try again"


class Tally:
    """One for a run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._counts: Counter[tuple[Operation, Outcome]] = Counter()

    def count(self, operation: Operation, outcome: Outcome) -> None:
        with self._changed:
            self._counts[operation, outcome] += 1
            self._changed.notify_all()

    def await_done(self, count: int, *, timeout: float) -> bool:
        """Return when so many operations are DONE; False when they are not within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._of(Outcome.DONE) >= count, timeout)

    @property
    def done(self) -> int:
        with self._changed:
            return self._of(Outcome.DONE)

    @property
    def later(self) -> int:
        with self._changed:
            return self._of(Outcome.LATER)

    def report(self) -> dict[str, dict[str, int]]:
        """By outcome, by operation; what never happened is left out."""
        with self._changed:
            return {
                outcome.value: {
                    operation.value: self._counts[operation, outcome]
                    for operation in Operation
                    if self._counts[operation, outcome]
                }
                for outcome in Outcome
            }

    def _of(self, outcome: Outcome) -> int:
        return sum(count for (_, end), count in self._counts.items() if end is outcome)
