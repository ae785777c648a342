"""Tells people that the Node allows more pods than can have addresses, by an Event for each pair of numbers."""

from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from coil.reconcile.event_recorder import EventSubject, Recorder
from coild.eni.node_condition import BEYOND_ADDRESSES
from coild.eni.store import EniStore


@dataclass(slots=True, kw_only=True)
class PodLimitWatch:
    """One per process. `subject` is the Node."""

    store: EniStore
    recorder: Recorder
    subject: EventSubject
    log: FilteringBoundLogger
    _told: str | None = None

    def look(self) -> None:
        """The limit, or what the node can have, may be another one now."""
        excess = self.store.excess
        if excess == self._told:
            return
        self._told = excess
        if excess is None:
            self.log.info("the limit of pods is within the addresses", pods=self.store.pods_limit)
        else:
            self.log.warning("the limit of pods is beyond the addresses", reason=excess)
            self.recorder.warn(self.subject, reason=BEYOND_ADDRESSES, message=excess)
