"""The interfaces that are attached to this instance, as EC2 has them: whose they are, and what was changed since.

EC2's descriptions are eventually consistent (EC2 Developer Guide, "Eventual consistency"): one that is asked for right
after a change may be of before it. So a change that EC2 has confirmed stands for `SETTLE_SECONDS` against any
description. Pure but for being kept: times are of the caller's clock.

Interfaces of other network cards than the first, which some instance types have, are left out: they are for EFA, and
their device numbers and limits are their own.

An interface is *own* if it is the primary one, or has the tags of this cluster and this instance. Any other one was
attached by somebody else: its addresses are no pod's, and it is never touched.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from itertools import count
from typing import Final

from coil.aws.ec2 import AttachmentId, InterfaceRecord
from coil.aws.metadata import MetadataInterface
from coil.eni.interface import PRIMARY_DEVICE, InterfaceId, NetworkInterface
from coil.kernel.family import IPNetwork

SETTLE_SECONDS: Final = 15.0

_DETACHING: Final = "detaching"

Picture = frozenset[tuple[InterfaceId, frozenset[IPNetwork], frozenset[str]]]
"""Interfaces with ranges and security groups: what both EC2 and the metadata service tell."""


@dataclass(slots=True)
class Inventory:
    """One per process. `tags` are those of own interfaces, `version` the IP version of pods' addresses.

    `lag` is for how many seconds the metadata service may tell a picture that is past.
    """

    tags: Mapping[str, str]
    version: int
    lag: float
    _records: dict[InterfaceId, InterfaceRecord] = field(default_factory=dict)
    _changes: dict[tuple[InterfaceId, IPNetwork | None], tuple[float, bool]] = field(default_factory=dict)
    """By interface, and by range unless it is the whole interface: when it was changed, and whether it is there."""
    _since: dict[InterfaceId, float] = field(default_factory=dict)
    """When each was seen first."""
    _past: deque[tuple[float, Picture]] = field(default_factory=deque)
    """Since when it was so; the present one is the last."""

    # --- changes

    def describe(self, records: Iterable[InterfaceRecord], *, asked: float) -> bool:
        """EC2 said so in answer to a question of that time.

        Returns whether it contradicts changes that stand: it is of before them, or somebody else has undone them. Only
        a description that is asked for after `SETTLE_SECONDS` can tell which.
        """
        self._changes = {key: change for key, change in self._changes.items() if change[0] > asked - SETTLE_SECONDS}
        here = (each for each in records if each.device_number is not None and each.network_card == 0)
        found = {each.id: each for each in here if each.status != _DETACHING}
        told = dict(found)
        for (interface, network), (_, there) in self._changes.items():
            if network is None and there and interface in self._records:
                found.setdefault(interface, self._records[interface])
            elif network is None and not there:
                found.pop(interface, None)
        for (interface, network), (_, there) in self._changes.items():
            if network is not None and (record := found.get(interface)) is not None:
                ranges = record.ranges | {network} if there else record.ranges - {network}
                found[interface] = replace(record, ranges=ranges)
        self._records = found
        self._note(asked)
        return found != told

    def assigned(self, interface: InterfaceId, ranges: Collection[IPNetwork], *, now: float) -> None:
        """EC2 has confirmed that the interface has these, too."""
        self._change_ranges(interface, ranges, there=True, now=now)

    def unassigned(self, interface: InterfaceId, ranges: Collection[IPNetwork], *, now: float) -> None:
        """EC2 has confirmed that it has taken these."""
        self._change_ranges(interface, ranges, there=False, now=now)

    def attached(self, record: InterfaceRecord, device: int, attachment: AttachmentId, *, now: float) -> None:
        """EC2 has confirmed that the interface is attached here."""
        self._records[record.id] = replace(
            record, status="in-use", device_number=device, attachment=attachment, deleted_with_instance=False
        )
        self._changes[record.id, None] = (now, True)
        self._note(now)

    def detached(self, interface: InterfaceId, *, now: float) -> None:
        """EC2 has confirmed that it is not attached any more, or is just being detached."""
        self._records.pop(interface, None)
        self._changes[interface, None] = (now, False)
        self._note(now)

    def flagged(self, record: InterfaceRecord, *, now: float) -> None:
        """EC2 has confirmed that the interface goes with the instance."""
        self._replace(replace(record, deleted_with_instance=True), now)

    def grouped(self, record: InterfaceRecord, groups: Collection[str], *, now: float) -> None:
        """EC2 has confirmed that the interface is in these security groups."""
        self._replace(replace(record, groups=tuple(groups)), now)

    # --- views

    @property
    def primary(self) -> InterfaceRecord | None:
        """None before the first description."""
        return next((each for each in self._records.values() if each.device_number == PRIMARY_DEVICE), None)

    def own(self) -> list[InterfaceRecord]:
        """By device number."""
        own = [each for each in self._records.values() if self.is_own(each)]
        return sorted(own, key=lambda each: each.device_number or 0)

    def find(self, interface: InterfaceId) -> InterfaceRecord | None:
        """An own one."""
        record = self._records.get(interface)
        return record if record is not None and self.is_own(record) else None

    def is_own(self, record: InterfaceRecord) -> bool:
        """See the module's text."""
        return record.device_number == PRIMARY_DEVICE or self.tags.items() <= record.tags.items()

    @property
    def foreign(self) -> int:
        """How many others have attached."""
        return len(self._records) - len(self.own())

    @property
    def attached_count(self) -> int:
        """All together."""
        return len(self._records)

    def interfaces(self) -> list[NetworkInterface]:
        """The own ones with their ranges of the pods' IP version."""
        attached = [(each, each.attached()) for each in self.own()]
        return [
            replace(interface, ranges=frozenset(each for each in record.ranges if each.version == self.version))
            for record, interface in attached
            if interface is not None
        ]

    def lowest_free_device(self) -> int:
        """The number for the next interface."""
        used = {each.device_number for each in self._records.values()}
        return next(number for number in count(PRIMARY_DEVICE + 1) if number not in used)

    def age(self, interface: InterfaceId, *, now: float) -> float:
        """For how many seconds it has been known."""
        return now - self._since.get(interface, now)

    def trace(self, found: Collection[MetadataInterface], *, now: float) -> bool:
        """Whether what the metadata service tells is so by EC2's word, or was within its lag.

        It is late, but it tells no lies, and never goes back: what it tells and EC2 never told, or had told before what
        the metadata service has told already, is somebody else's doing. So may be what is past for too long.
        """
        self._forget_past(now)
        told = frozenset((each.interface, frozenset(told_ranges(each)), frozenset(each.groups)) for each in found)
        for index, (_, picture) in enumerate(self._past):
            if picture == told:
                for _ in range(index):
                    self._past.popleft()
                return True
        return False

    # --- inside

    def _replace(self, record: InterfaceRecord, now: float) -> None:
        if record.id in self._records:
            self._records[record.id] = record
            self._note(now)

    def _change_ranges(self, interface: InterfaceId, ranges: Collection[IPNetwork], *, there: bool, now: float) -> None:
        for network in ranges:
            self._changes[interface, network] = (now, there)
        if (record := self._records.get(interface)) is not None:
            changed = record.ranges | set(ranges) if there else record.ranges - set(ranges)
            self._records[interface] = replace(record, ranges=changed)
        self._note(now)

    def _note(self, now: float) -> None:
        self._since = {interface: self._since.get(interface, now) for interface in self._records}
        picture = frozenset((each.id, each.ranges, frozenset(each.groups)) for each in self._records.values())
        if not self._past or self._past[-1][1] != picture:
            self._past.append((now, picture))
        self._forget_past(now)

    def _forget_past(self, now: float) -> None:
        while len(self._past) > 1 and self._past[1][0] < now - self.lag:
            self._past.popleft()


def told_ranges(found: MetadataInterface) -> set[IPNetwork]:
    """What the metadata service says that pods may have: all but the primary address, which is the first."""
    singles: set[IPNetwork] = {IPv4Network(address) for address in found.local_ipv4s[1:]}
    return singles | set(found.ipv4_prefixes) | set(found.ipv6_prefixes)
