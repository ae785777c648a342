"""What a cleanup has done, and what is left after it and why."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from coil.openstack.error import (
    DeniedError,
    InUseError,
    InvalidError,
    OpenStackError,
    UnauthenticatedError,
    UnsupportedError,
)

_FOR_PEOPLE = (DeniedError, UnauthenticatedError, InvalidError, UnsupportedError)


class Cause(StrEnum):
    """Why something is left. The values are words of the command's output."""

    WORKING = "working"
    """OpenStack is about to delete it."""
    UNANSWERED = "unanswered"
    """A call was not answered, or refused for the time being."""
    IN_USE = "in use"
    """Something refers to it: what is being deleted, or what is somebody else's."""
    FOREIGN = "foreign"
    """Something of somebody else is on it."""
    REFUSED = "refused"
    """Only people can change what keeps it."""

    @property
    def is_ours(self) -> bool:
        """Whether it could still be deleted, so that Kubernetes has to remember it."""
        return self not in (Cause.IN_USE, Cause.FOREIGN)

    @property
    def patience(self) -> float:
        """Seconds for which it is tried again without any progress."""
        return {Cause.WORKING: 300.0, Cause.UNANSWERED: 300.0, Cause.IN_USE: 60.0}.get(self, 0.0)


@dataclass(frozen=True, slots=True, order=True)
class Remnant:
    """`what` names the object: "network ID (Namespace default)"."""

    what: str
    cause: Cause
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def cause_of(error: OpenStackError) -> Cause:
    """What a refusal to delete means."""
    if isinstance(error, InUseError):
        return Cause.IN_USE
    return Cause.REFUSED if isinstance(error, _FOR_PEOPLE) else Cause.UNANSWERED


class Deeds:
    """What was done. `say` gets a line for each, but for those of which there may be thousands: these are counted."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, deed: str, kind: str, what: str, *, aloud: bool = True) -> None:
        """Such as "deleted", "network", "ID (Namespace default)"."""
        self._counts[deed, kind] += 1
        if aloud:
            self._say(f"{deed} {kind} {what}")

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    def lines(self) -> list[str]:
        """How many of each: "deleted: 3 networks"."""
        return [
            f"{deed}: {count} {kind if count == 1 else kind + 's'}"
            for (deed, kind), count in sorted(self._counts.items())
        ]
