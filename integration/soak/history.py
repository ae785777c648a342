"""What happened, in order and in few words: what a violation is explained with. Thread-safe.

An entry has subjects: the container, the addresses, the node that it is about. Faults have none and concern everybody.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

KEPT = 100_000
"""Entries; a run of an hour has fewer."""

TOLD = 60
"""Entries in a violation's text."""


class Violation(AssertionError):  # noqa: N818 - it is the word that is looked for
    """Coil did what it must never do. The text has the seed and what led to it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`at` is in seconds since the beginning."""

    at: float
    where: str
    what: str
    subjects: frozenset[str]

    def __str__(self) -> str:
        return f"{self.at:8.3f} {self.where:<12} {self.what}"


class History:
    """One for a run."""

    def __init__(self, seed: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seed = seed
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        self._violations: list[Violation] = []

    def now(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began

    def note(self, where: str, what: str, subjects: Collection[str] = ()) -> None:
        """Something happened at `where`, to the subjects, or to all."""
        with self._lock:
            self._entries.append(Entry(self.now(), where, what, frozenset(subjects)))

    def violation(self, what: str, subjects: Collection[str]) -> Violation:
        """To be raised: with what happened to the subjects before, among the faults."""
        with self._lock:
            wanted = set(subjects)
            told = _shortened([entry for entry in self._entries if not entry.subjects or entry.subjects & wanted])
            lines = [f"COIL_SEED={self.seed}: {what}", *map(str, told), f"{self.now():8.3f} here"]
            violation = Violation("\n".join(lines))
            self._violations.append(violation)
        return violation

    def violations(self) -> list[Violation]:
        """All so far. One that was raised in a thread may be hidden by what came of it."""
        with self._lock:
            return list(self._violations)

    def text(self) -> str:
        """All of it."""
        with self._lock:
            return "".join(f"{entry}\n" for entry in self._entries)


def _shortened(entries: list[Entry]) -> list[Entry]:
    """The last of them; of those that repeat one another at one place only the first."""
    said: dict[str, str] = {}
    kept = []
    for entry in entries:
        if said.get(entry.where) != entry.what:
            kept.append(entry)
        said[entry.where] = entry.what
    return kept[-TOLD:]
