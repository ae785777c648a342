"""How one reconciler makes work for another: it sends what has happened, and the receiver's mapping names the keys.

controller-runtime's `source.Channel`, without the goroutine: `send` is synchronous, so what was sent is in the
receiver's queue before the sender goes on. The sender knows neither the receivers nor their keys.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """Events of one type, from any number of senders to the controllers that watch it (`TermController.watch_channel`).

    Nothing is stored: an event that is sent before anybody watches goes nowhere. Make a channel in the same setup of a
    term as its senders and receivers; it ends with them.
    """

    def __init__(self) -> None:
        self._receivers: list[Callable[[T], None]] = []

    def subscribe(self, receiver: Callable[[T], None], /) -> None:
        """Call `receiver` with every event from now on. It must be quick and must not raise."""
        self._receivers.append(receiver)

    def send(self, event: T) -> None:
        """Hand `event` to every receiver, in the order of their subscription, before this returns."""
        for receiver in self._receivers:
            receiver(event)
