"""What this node has changed at EC2 and had confirmed, laid over descriptions that are of before it.

EC2 is eventually consistent (EC2 Developer Guide, "Eventual consistency"): for a while after a call was answered,
DescribeNetworkInterfaces may tell what was so before, and an answer may be older than the one before it. So each
confirmed change stands against all descriptions that are asked for within `lag` seconds, even if one of them has shown
it already. Every later description has it, unless somebody else has undone it. Pure: times are of the
caller's clock.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias

from coil.aws.ec2 import InterfaceRecord
from coil.eni.interface import InterfaceId
from coil.kernel.family import IPNetwork

DESCRIBE_LAG_SECONDS: Final = 60.0
"""How much older than its question a description may be. EC2 documents no bound; users of such plugins report seconds,
and up to a minute while many nodes start (cilium#36428)."""


class Part(Enum):
    """What of an interface is changed by one call; a range of it is a part, too."""

    ATTACHMENT = "attachment"
    FLAG = "DeleteOnTermination"
    GROUPS = "security groups"


_Change: TypeAlias = Callable[[InterfaceRecord], InterfaceRecord]
_Rewrite: TypeAlias = Callable[[InterfaceRecord | None], InterfaceRecord | None]
"""From what a description says of an interface to what is so; None: it is not attached to this instance."""


@dataclass(frozen=True, slots=True)
class _Write:
    at: float
    rewrite: _Rewrite


class OwnWrites:
    """One per process. `lag` is how many seconds older than its question a description may be."""

    def __init__(self, *, lag: float = DESCRIBE_LAG_SECONDS) -> None:
        self._lag = lag
        self._writes: dict[tuple[InterfaceId, Part | IPNetwork], _Write] = {}
        """The last change of each part."""

    # --- changes that EC2 has confirmed at a time

    def attached(self, record: InterfaceRecord, *, at: float) -> None:
        """The interface is attached to this instance, and has what the record says; of any attachment if that names
        none. What was changed of it before is of another attachment.
        """

        def rewrite(told: InterfaceRecord | None) -> InterfaceRecord:
            return told if told is not None and record.attachment in (told.attachment, None) else record

        self._writes = {key: write for key, write in self._writes.items() if key[0] != record.id}
        self._writes[record.id, Part.ATTACHMENT] = _Write(at, rewrite)
        self.assigned(record.id, record.ranges, at=at)

    def detached(self, interface: InterfaceId, *, at: float) -> None:
        """It is not attached any more, or is just being detached, or does not exist."""
        self._writes[interface, Part.ATTACHMENT] = _Write(at, lambda _: None)

    def assigned(self, interface: InterfaceId, ranges: Iterable[IPNetwork], *, at: float) -> None:
        """The interface has these."""
        for network in ranges:
            self._note(interface, network, at, _adds(network))

    def unassigned(self, interface: InterfaceId, ranges: Iterable[IPNetwork], *, at: float) -> None:
        """The interface does not have these any more."""
        for network in ranges:
            self._note(interface, network, at, _removes(network))

    def flagged(self, interface: InterfaceId, *, at: float) -> None:
        """The interface goes with the instance."""
        self._note(interface, Part.FLAG, at, lambda told: replace(told, deleted_with_instance=True))

    def grouped(self, interface: InterfaceId, groups: Collection[str], *, at: float) -> None:
        """The interface is in these security groups."""
        self._note(interface, Part.GROUPS, at, lambda told: replace(told, groups=tuple(groups)))

    # --- against descriptions

    def expire(self, *, asked: float) -> None:
        """Forget what a description that is asked for at that time has, as all later ones do."""
        self._writes = {key: write for key, write in self._writes.items() if asked < write.at + self._lag}

    def overlay(self, told: Iterable[InterfaceRecord]) -> dict[InterfaceId, InterfaceRecord]:
        """What is attached to this instance, by a description and by the changes that stand."""
        found = {each.id: each for each in told}
        # Attachments first: the other changes are of interfaces that are attached.
        for (interface, _), write in sorted(self._writes.items(), key=lambda item: item[0][1] is not Part.ATTACHMENT):
            record = write.rewrite(found.pop(interface, None))
            if record is not None:
                found[interface] = record
        return found

    def stands(self, interface: InterfaceId, part: Part | IPNetwork) -> bool:
        """Whether a part is there, or is not, by the node's own change, whatever descriptions tell."""
        return (interface, part) in self._writes

    @property
    def last(self) -> float | None:
        """When the last of the changes that stand was confirmed; None if none stands."""
        return max((write.at for write in self._writes.values()), default=None)

    def _note(self, interface: InterfaceId, part: Part | IPNetwork, at: float, change: _Change) -> None:
        self._writes[interface, part] = _Write(at, lambda told: None if told is None else change(told))


def _adds(network: IPNetwork) -> _Change:
    return lambda told: replace(told, ranges=told.ranges | {network})


def _removes(network: IPNetwork) -> _Change:
    return lambda told: replace(told, ranges=told.ranges - {network})
