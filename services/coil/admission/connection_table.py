"""Who is connected to a server, and who has to go when there are too many. Pure.

Whoever can reach the server can open connections and leave them open, so the oldest that has no request at work makes
room for a new one: first those that never had a request, as the API server's have. A source that has more than its
share loses its own; the others do not notice its crowd.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from coil.kernel.family import IPAddress


class HasSource(Protocol):
    """`idle_since` is when it was accepted or its last request was answered; None while one is at work. `used`: it has
    had a request.
    """

    @property
    def source(self) -> IPAddress: ...

    @property
    def idle_since(self) -> float | None: ...

    @property
    def used(self) -> bool: ...


C = TypeVar("C", bound=HasSource)


@dataclass(slots=True)
class ConnectionTable(Generic[C]):
    """At most `limit`, and at most `share` of one source where there are as many."""

    limit: int
    share: int
    _open: list[C] = field(default_factory=list)

    def add(self, connection: C) -> C | None:
        """Note a new one; returns the one that has to go for it, which may be itself, and is not in the table then."""
        self._open.append(connection)
        if len(self._open) <= self.limit:
            return None
        counts = Counter(each.source for each in self._open)
        idle = [(each.idle_since, each) for each in self._open if each.idle_since is not None]
        _, victim = min(idle, key=lambda entry: (counts[entry[1].source] <= self.share, entry[1].used, entry[0]))
        self.remove(victim)
        return victim

    def remove(self, connection: C) -> None:
        """Idempotent."""
        if connection in self._open:
            self._open.remove(connection)
