"""Informers outlive terms of leadership; what listens to them in a term must not.

In the flow: informers run in every replica, so that a new leader has full caches at once. Controllers and their
queues exist only during a term. A `TermSource` stands between: it follows its informer for ever and passes the
changes on to the listeners of the present term.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Listener: TypeAlias = Callable[[T | None, T | None], None]


class Followed(Protocol[T]):
    """The part of the informer that is used here."""

    def items(self) -> list[T]: ...

    def subscribe(self, listener: Listener[T], /) -> None: ...


class TermSource(Generic[T]):
    """A source for `Controller.watch`. Without listeners, between terms, changes go nowhere."""

    def __init__(self, followed: Followed[T]) -> None:
        self._followed = followed
        self._listeners: list[Listener[T]] = []
        followed.subscribe(self._tell)

    def subscribe(self, listener: Listener[T], /) -> None:
        """Until `end_term`. What is there now is told first, as (None, new)."""
        for item in self._followed.items():
            listener(None, item)
        self._listeners.append(listener)

    def end_term(self) -> None:
        """Forget every listener."""
        self._listeners.clear()

    def _tell(self, old: T | None, new: T | None) -> None:
        for listener in self._listeners:
            listener(old, new)
