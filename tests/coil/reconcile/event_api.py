"""The API server as an event recorder sees it: it keeps Events, and fails when a test wants it to."""

from collections.abc import Callable

from coil.crd.builtin import EVENTS, Event
from coil.kube.errors import ApiError
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient, Moment

Fate = Callable[[Call], ApiError | None]


class EventApi(MemoryClient):
    """`fate` is asked before each call: an error to raise, or None. `lost` is asked after it took effect.

    `times` has the moment of each call.
    """

    def __init__(self, *, clock: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(MemoryApi(), self._pass)
        self.fate: Fate = lambda call: None
        self.lost: Fate = lambda call: None
        self.times: list[float] = []
        self._clock = clock

    def events(self) -> list[Event]:
        return self.api.all(EVENTS)

    def remove_events(self) -> None:
        for event in self.events():
            self.api.remove(EVENTS, event.metadata.name, event.metadata.namespace)

    def verbs(self) -> list[str]:
        return [call.verb for call in self.calls]

    async def _pass(self, call: Call, moment: Moment) -> None:
        if moment is Moment.BEFORE:
            self.times.append(self._clock())
        ask = self.fate if moment is Moment.BEFORE else self.lost
        if (error := ask(call)) is not None:
            raise error
