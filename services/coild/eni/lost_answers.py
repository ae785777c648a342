"""Calls that change something at EC2 and were not answered: nobody knows whether they took place.

Those with a token, or that name what is to be so, are repeated as they were. The others are kept here until EC2 has
described what came of them, and nothing of the kind is asked for meanwhile: AssignPrivateIpAddresses would assign
twice. A description that shows their effect decides at once; one that does not decides when it can be of no moment
before the call (`coild.eni.own_writes`). Until then EC2 is asked ever less often. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from coil.aws.ec2 import InterfaceRecord
from coil.eni.interface import InterfaceId
from coil.kernel.family import IPNetwork
from coild.eni.own_writes import DESCRIBE_LAG_SECONDS

SHORTEST_LOOK: Final = 2.0
"""Seconds between two descriptions, or half of the time that has passed since the call if that is more."""


class _Kind(Enum):
    ATTACH = "attach"
    ASSIGN = "assign"
    TAKE = "take"


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    kind: _Kind
    interface: InterfaceId
    at: float
    before: frozenset[IPNetwork] = frozenset()
    """The ranges that the interface had."""


@dataclass(slots=True)
class LostAnswers:
    """One per process. Times are those of calls and of questions, by one clock; `name` is the operation's. `lag` is how
    many seconds older than its question a description may be.
    """

    lag: float = DESCRIBE_LAG_SECONDS
    _calls: list[_Call] = field(default_factory=list)

    def to_attach(self, name: str, interface: InterfaceId, *, at: float) -> None:
        """It was to attach the interface."""
        self._calls.append(_Call(name, _Kind.ATTACH, interface, at))

    def to_assign(self, name: str, interface: InterfaceId, *, before: frozenset[IPNetwork], at: float) -> None:
        """It was to give the interface more than the ranges that it had before."""
        self._calls.append(_Call(name, _Kind.ASSIGN, interface, at, before))

    def to_take(self, name: str, interface: InterfaceId, *, at: float) -> None:
        """It was to detach the interface, or to take ranges from it."""
        self._calls.append(_Call(name, _Kind.TAKE, interface, at))

    def resolve(self, find: Callable[[InterfaceId], InterfaceRecord | None], *, asked: float) -> None:
        """EC2 was asked for a description at that time; `find` is what is known of an interface since."""
        self._calls = [each for each in self._calls if not self._resolved(each, find(each.interface), asked)]

    @property
    def adding(self) -> bool:
        """Whether the node may have more than is known."""
        return any(each.kind is not _Kind.TAKE for each in self._calls)

    @property
    def taking(self) -> frozenset[InterfaceId]:
        """The interfaces that may have less than is known, or may be detached."""
        return frozenset(each.interface for each in self._calls if each.kind is _Kind.TAKE)

    @property
    def reason(self) -> str | None:
        """Why the node has nothing more assigned now; None if it is not for this."""
        first = next((each for each in self._calls if each.kind is not _Kind.TAKE), None)
        if first is None:
            return None
        return (
            f"{first.name} for {first.interface} was not answered, and EC2 may describe what came of it only after "
            f"{self.lag:.0f} s"
        )

    def next_look(self, *, asked: float) -> float | None:
        """When the next description after the one of that time is to be asked for; None if all is known."""
        return min((self._next_look(each, asked) for each in self._calls), default=None)

    def _resolved(self, call: _Call, found: InterfaceRecord | None, asked: float) -> bool:
        if asked >= call.at + self.lag:
            return True
        match call.kind:
            case _Kind.ATTACH:
                return found is not None
            case _Kind.ASSIGN:
                return found is None or bool(found.ranges - call.before)
            case _Kind.TAKE:
                return False

    def _next_look(self, call: _Call, asked: float) -> float:
        settled = call.at + self.lag
        if call.kind is _Kind.TAKE:
            return settled
        return min(settled, asked + max(SHORTEST_LOOK, (asked - call.at) / 2))
