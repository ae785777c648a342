"""Tells people of blocks that should have gone long ago: an Event on each, with what holds it. Driven by the sweep."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.names import FINALIZER, NodeName
from coil.reconcile.event_recorder import EventSubject, Recorder
from coild.addresses.block_store import BlockStore

RELEASED_LATE = "BlockReleasedLate"
"""Reason of the Event."""

LATE_SECONDS = 300.0

NAMED = 5
"""So many addresses are named in one message."""


@dataclass(slots=True)
class StuckRelease:
    """One per process. Remembers since when it has seen each block linger, so it is as exact as it is called often."""

    store: BlockStore
    recorder: Recorder
    node: NodeName
    clock: Callable[[], float] = time.monotonic
    _seen: dict[EventSubject, float] = field(default_factory=dict)

    def report(self) -> None:
        """One warning for each block whose release has been under way, or asked for, for too long. Never raises."""
        now = self.clock()
        lingering = dict(self._lingering())
        self._seen = {subject: self._seen.get(subject, now) for subject in lingering}
        for subject, message in lingering.items():
            if now - self._seen[subject] >= LATE_SECONDS:
                self.recorder.warn(subject, reason=RELEASED_LATE, message=message)

    def _lingering(self) -> Iterator[tuple[EventSubject, str]]:
        for departure in self.store.departures():
            subject = EventSubject(ADDRESS_BLOCKS.api_version, ADDRESS_BLOCKS.kind, departure.name, uid=departure.uid)
            others = [finalizer for finalizer in departure.finalizers if finalizer != FINALIZER]
            why = f"it still has the finalizers {', '.join(others)}" if others else "its object could not be removed"
            yield subject, f"node {self.node} has given the block back, but {why}"
        for document in self.store.draining():
            subject = EventSubject.of(ADDRESS_BLOCKS, document.metadata)
            yield subject, f"its deletion was asked for, but pods on node {self.node} still have addresses of it"
        for document, pods in self.store.kept():
            addresses = sorted(str(address) for held in pods for address in held.addresses.present)
            named = ", ".join(addresses[:NAMED]) + (", …" if len(addresses) > NAMED else "")
            yield (
                EventSubject.of(ADDRESS_BLOCKS, document.metadata),
                f"pods on node {self.node} have addresses that are in none of its blocks: {named}; "
                "in case they were this block's, it is kept until they have gone",
            )
