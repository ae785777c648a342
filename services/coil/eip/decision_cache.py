"""Which decisions connections may bear: the sets `DECISIONS` and `VALID`.

A connection bears the mark of the policy that has decided for it, and its packets are not looked up again while that
mark is valid. So whatever may have a packet decided otherwise takes the mark away, in the transaction that changes it
or in one before; and the policy gets another one, which no connection bears, only when the change has rested: a packet
that the kernel was about to decide for by the former elements has had its mark by then.
"""

import secrets
from collections.abc import Callable, Collection, Iterable
from typing import Final

from coil.eip.eip_set import DECIDED, DECISIONS, PENDING, VALID
from coil.eip.element_ledger import ElementLedger

REST_SECONDS: Final = 0.1
"""How long after a change: the kernel decides for a packet within microseconds."""
_MARKS: Final = 1 << 24


class DecisionCache:
    """Of the policies that a node carries. Writes into the ledger; `clock` gives monotonic seconds.

    Marks are taken in turn, from one drawn at random. One is taken again when all others were, days later: a connection
    that has been silent since would bear it wrongly.
    """

    def __init__(self, ledger: ElementLedger, *, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._last = secrets.randbelow(_MARKS)
        self._marks: dict[str, int] = {}
        self._changed: set[str] = set()
        """Without a mark, and what has changed may not be in the kernel yet."""
        self._resting: dict[str, float] = {}
        """Without a mark, and since when what has changed is in the kernel."""

    def follow(self, word: str, *, carried: bool) -> None:
        """The policy of that number is carried here, or not any more. What was decided for it counts no more."""
        self.spoil([word])
        self._changed.discard(word)
        self._resting.pop(word, None)
        if carried:
            self._changed.add(word)

    def spoil(self, words: Iterable[str]) -> None:
        """What was decided for these policies may be decided otherwise now."""
        for word in words:
            mark = self._marks.pop(word, None)
            if mark is not None:
                self._ledger.remove(VALID, str(DECIDED.value | mark))
                self._ledger.remove(DECISIONS, word)
                self._changed.add(word)
            elif self._resting.pop(word, None) is not None:
                self._changed.add(word)

    def spoil_all(self) -> None:
        self.spoil([*self._marks, *self._resting])

    def settle(self) -> None:
        """All changes so far are in the kernel."""
        now = self._clock()
        self._resting |= dict.fromkeys(self._changed, now)
        self._changed.clear()

    def wait(self) -> float | None:
        """In how many seconds some policy gets a mark; None if none does without a change."""
        if not self._resting:
            return None
        return max(0.0, min(self._resting.values()) + REST_SECONDS - self._clock())

    def renew(self) -> None:
        """Give marks to the policies whose changes have rested."""
        rested = self._clock() - REST_SECONDS
        used = set(self._marks.values())
        for word in [word for word, since in self._resting.items() if since <= rested]:
            del self._resting[word]
            mark = self._next_mark(used)
            used.add(mark)
            self._marks[word] = mark
            self._ledger.put(VALID, str(DECIDED.value | mark), None)
            self._ledger.put(DECISIONS, word, PENDING.value | mark)

    def _next_mark(self, used: Collection[int]) -> int:
        while True:
            self._last = (self._last + 1) % _MARKS
            if self._last not in used:
                return self._last
