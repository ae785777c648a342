"""Which attachment has which port of this node: in memory, with the journal under it.

    take ─► note_bound ─► drop            an ADD and its DEL
                      └─► leave ─► settle     where the port could not be unplugged when the pod ended

A port has one holder at most: an attachment, or one that is gone and whose port is still to be unplugged. Everything is
synchronous, and the journal is written before the caller goes on.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace

from structlog.typing import FilteringBoundLogger

from coil.ipam.occupancy import AttachmentKey
from coil.kernel.link import LinkName
from coil.neutron.handoff import Handoff
from coil.neutron.port_rules import RuleSet
from coil.neutron.resource import PortId
from coild.model.attachment import PodName
from coild.model.port_error import PortInUseError
from coild.neutron.binding import PortBinding
from coild.neutron.journal import PortHolding, PortJournal


class PortLedger:
    """One per process. `wall` is the time of day in seconds since 1970. Nothing may change before `resume`."""

    def __init__(self, journal: PortJournal, *, wall: Callable[[], float], log: FilteringBoundLogger) -> None:
        self._journal = journal
        self._wall = wall
        self._log = log
        self._held, self._left = journal.load()
        self.something_left = asyncio.Event()
        """Set whenever there is something more to be unplugged; whoever unplugs it clears it."""

    def find(self, key: AttachmentKey) -> PortHolding | None:
        """What the attachment has."""
        return self._held.get(key)

    def held(self) -> Collection[PortHolding]:
        """What attachments have."""
        return list(self._held.values())

    def left(self) -> Collection[PortHolding]:
        """What is still to be unplugged."""
        return list(self._left.values())

    def find_left(self, port: PortId) -> PortHolding | None:
        """The attachment that is gone, and whose port this was, if it is still to be unplugged."""
        return self._left.get(port)

    def bound(self) -> Collection[PortBinding]:
        """All that are plugged in."""
        return [holding.binding for holding in self._held.values() if holding.bound]

    def resume(self, present: Collection[AttachmentKey]) -> None:
        """Go on with the attachments that the kernel has; all other ports are to be unplugged. Once, at start.

        What is plugged in now has the last word: a port that a former attachment had, too, is not taken from it.
        """
        for key in [key for key in self._held if key not in present]:
            holding = self._held.pop(key)
            self._left[holding.port.port] = holding
        for holding in self._held.values():
            if (other := self._left.pop(holding.port.port, None)) is not None:
                self._log.warning(
                    "a port of a former container is plugged in for another one, and stays so",
                    port=holding.port.port,
                    former=other.key.container_id,
                    container=holding.key.container_id,
                )
        self._journal.start(self._held.values(), self._left.values())
        if self._left:
            self.something_left.set()

    def adopt(self, key: AttachmentKey, pod: PodName, link: LinkName, port: Handoff) -> bool:
        """Take an attachment that the journal does not know as one that is plugged in. Before `resume`.

        False where another one has the port.
        """
        if any(holding.port.port == port.port for holding in self._held.values()):
            return False
        self._held[key] = PortHolding(key=key, pod=pod, link=link, port=port, since=self._wall(), bound=True)
        return True

    def take(
        self, key: AttachmentKey, pod: PodName, link: LinkName, port: Handoff, *, reported: bool = True
    ) -> PortHolding:
        """Give the port to the attachment, which has none. Raises PortInUseError, and then nothing has changed."""
        for holding in (*self._held.values(), *self._left.values()):
            if holding.port.port == port.port:
                raise PortInUseError(_describe(holding, pod))
        taken = PortHolding(key=key, pod=pod, link=link, port=port, since=self._wall(), reported=reported)
        self._journal.note_given(taken)
        self._held[key] = taken
        self._compact()
        return taken

    def note_rules(self, key: AttachmentKey, rules: RuleSet | None) -> None:
        """The rules of the attachment's port are these from now on. An unknown one is fine."""
        if (holding := self._held.get(key)) is not None:
            self._held[key] = changed = replace(holding, port=replace(holding.port, rules=rules))
            self._journal.note_given(changed)
            if changed.bound:
                self._journal.note_bound(key)
            self._compact()

    def note_bound(self, key: AttachmentKey) -> None:
        """The attachment's port is plugged in."""
        if (holding := self._held.get(key)) is not None and not holding.bound:
            self._journal.note_bound(key)
            self._held[key] = replace(holding, bound=True)
            self._compact()

    def note_unbound(self, key: AttachmentKey) -> None:
        """It is not any more; the attachment keeps the port."""
        if (holding := self._held.get(key)) is not None:
            self._held[key] = unbound = replace(holding, bound=False)
            self._journal.note_given(unbound)
            self._compact()

    def drop(self, key: AttachmentKey) -> None:
        """Nothing is left of the attachment. An unknown one is fine."""
        if (holding := self._held.pop(key, None)) is not None:
            self._journal.note_gone(holding)
            self._compact()

    def leave(self, key: AttachmentKey) -> None:
        """The attachment is gone, and its port is still to be unplugged. An unknown one is fine."""
        if (holding := self._held.pop(key, None)) is not None:
            self._journal.note_left(holding)
            self._left[holding.port.port] = holding
            self._compact()
            self.something_left.set()

    def settle(self, port: PortId) -> None:
        """The port is unplugged."""
        if (holding := self._left.pop(port, None)) is not None:
            self._journal.note_gone(holding)
            self._compact()

    def _compact(self) -> None:
        self._journal.compact(self._held.values(), self._left.values())


def _describe(holding: PortHolding, pod: PodName) -> str:
    port, container, link = holding.port.port, holding.key.container_id, holding.link
    if holding.pod.full_name == pod.full_name:
        return (
            f"the port {port} is still that of the container {container} of the same pod, whose link is {link}. It "
            "goes with the DEL of that container, or if its network namespace is deleted"
        )
    return f"the port {port} is that of the pod {holding.pod.full_name}, container {container}, on the link {link}"
