"""What the services of OpenStack in memory have in common: a record of their calls, and faults."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from coil.openstack.error import OpenStackError, UnavailableError
from tests.coil.kube.memory_api import Moment

Answer = TypeVar("Answer")
Gate = Callable[[str, Moment], Awaitable[None]]


async def _open(_call: str, moment: Moment) -> None:
    if moment is Moment.BEFORE:
        await asyncio.sleep(0)


@dataclass(slots=True)
class Faults:
    """What goes wrong with the next calls, by their names: "create port"."""

    refusals: dict[str, list[OpenStackError]] = field(default_factory=dict)
    """Errors in place of the next calls of that name; nothing is done."""
    lost_answers: Counter[str] = field(default_factory=Counter)
    """How many of the next calls of that name take place and are answered with UnavailableError."""


class MemoryService:
    """`calls` is what was asked, in order; `faults` has calls refused, or carried out without an answer.

    `gate` is awaited before and after every call takes effect. `late` gets the effect of a call whose caller was
    cancelled before: a request that is under way arrives, though nobody waits for its answer.
    """

    def __init__(self) -> None:
        self.gate: Gate = _open
        self.late: Callable[[str, Callable[[], object]], None] = lambda _call, _work: None
        self.faults = Faults()
        self.calls: list[str] = []
        self._numbers = count(1)

    def writes(self) -> list[str]:
        """The calls that were to change something."""
        return [call for call in self.calls if not call.startswith(("list ", "get "))]

    async def _call(self, call: str, work: Callable[[], Answer]) -> Answer:
        self.calls.append(call)
        try:
            await self.gate(call, Moment.BEFORE)
        except asyncio.CancelledError:
            self.late(call, work)
            raise
        if refusals := self.faults.refusals.get(call):
            raise refusals.pop(0)
        answer = work()
        if self.faults.lost_answers[call] > 0:
            self.faults.lost_answers[call] -= 1
            raise UnavailableError(call, "504", "the answer was lost")
        await self.gate(call, Moment.AFTER)
        return answer

    def _id(self) -> str:
        return uuid(next(self._numbers))


def uuid(number: int) -> str:
    """The number as an ID."""
    return f"00000000-0000-4000-8000-{number:012x}"
