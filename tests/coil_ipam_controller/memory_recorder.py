"""A recorder of Events that keeps what it was told, in order."""

from dataclasses import dataclass, field

from coil.crd.builtin import EventType
from coil.reconcile.event_series import EventSubject


@dataclass(frozen=True, slots=True)
class Told:
    type: EventType
    kind: str
    name: str
    reason: str
    message: str


@dataclass
class MemoryRecorder:
    """A `Recorder`."""

    told: list[Told] = field(default_factory=list)

    def warn(self, subject: EventSubject, *, reason: str, message: str) -> None:
        self.told.append(Told(EventType.WARNING, subject.kind, subject.name, reason, message))

    def note(self, subject: EventSubject, *, reason: str, message: str) -> None:
        self.told.append(Told(EventType.NORMAL, subject.kind, subject.name, reason, message))

    @property
    def reasons(self) -> list[str]:
        return [told.reason for told in self.told]
