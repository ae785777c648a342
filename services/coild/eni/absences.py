"""What EC2's descriptions lack although the node has it, as far as it knows; and what they have although it may not.

One description is no proof: it may be of before a change, or from a replica that lags behind
(`coild.eni.own_writes`). So what is missing is *doubted*: no pod gets anything of it, and whoever has it keeps it. It
is gone when it is missing in two descriptions that were asked for half of the longest lag apart, thirty seconds by
default. It is trusted again when it is in one that can be of no moment before the last in which it was missing.

What an earlier process may have given back with its last breath is doubted in the same way from the start of this one
(`inherit`), and is *unproven* until it is trusted: the journal does not vouch for it. Pure.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TypeAlias

from coil.eni.interface import InterfaceId
from coil.kernel.family import IPNetwork
from coild.eni.own_writes import DESCRIBE_LAG_SECONDS, Part

Key: TypeAlias = tuple[InterfaceId, Part | IPNetwork]
"""A range of an interface, or the interface's attachment with all of its ranges."""


@dataclass(frozen=True, slots=True)
class _Absence:
    first: float
    last: float
    unproven: bool = False


class Absences:
    """One per process. All times are those of questions to EC2. `lag` is how many seconds older than its question a
    description may be.
    """

    def __init__(self, *, lag: float = DESCRIBE_LAG_SECONDS) -> None:
        self._lag = lag
        self._absences: dict[Key, _Absence] = {}

    @property
    def gone_after(self) -> float:
        """Seconds between two descriptions that have to lack something before it counts as gone."""
        return self._lag / 2

    def miss(self, key: Key, *, asked: float) -> bool:
        """A description lacks it, and not because it may be of before the node's own change; returns whether it is
        gone.
        """
        absence = replace(self._absences.get(key, _Absence(asked, asked)), last=asked)
        if asked >= absence.first + self.gone_after:
            self._absences.pop(key, None)
            return True
        self._absences[key] = absence
        return False

    def inherit(self, key: Key, *, at: float) -> None:
        """A description has it, and an earlier process may have given it back just before that time."""
        self._absences.setdefault(key, _Absence(at, at, unproven=True))

    def see(self, key: Key, *, asked: float) -> None:
        """A description has it."""
        absence = self._absences.get(key)
        if absence is not None and asked >= absence.last + self._lag:
            del self._absences[key]

    def forget(self, key: Key) -> None:
        """The node has changed it: that it was missing before says nothing any more."""
        self._absences.pop(key, None)

    def keep(self, keys: Collection[Key]) -> None:
        """Forget all others, which nobody takes to be there."""
        self._absences = {key: absence for key, absence in self._absences.items() if key in keys}

    @property
    def doubted(self) -> frozenset[Key]:
        """What no pod may get."""
        return frozenset(self._absences)

    @property
    def unproven(self) -> frozenset[Key]:
        """What only descriptions say to be there, and may be past."""
        return frozenset(key for key, each in self._absences.items() if each.unproven)

    def next_look(self, *, asked: float) -> float | None:
        """When a description is to be asked for that can tell more than the one of that time; None if none can."""
        return min((self._next_look(each, asked) for each in self._absences.values()), default=None)

    def _next_look(self, absence: _Absence, asked: float) -> float:
        return absence.last + self._lag if absence.last < asked else absence.first + self.gone_after
