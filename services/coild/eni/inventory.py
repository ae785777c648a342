"""The interfaces that are attached to this instance, as EC2 has them: whose they are, and what was changed since.

EC2's descriptions are eventually consistent: one that is asked for right after a change may be of before it. So what
EC2 has confirmed of the node's own changes is laid over them (`coild.eni.own_writes`), and what one description lacks
is doubted, and gone only when another one lacks it, too (`coild.eni.absences`). Pure but for being kept: times are of
the caller's clock.

Interfaces of other network cards than the first, which some instance types have, are left out: they are for EFA, and
their device numbers and limits are their own. One without an IPv4 address takes a place, and nothing more.

An interface is *own* if it is the primary one, or has the tags of this cluster and this instance. Any other one was
attached by somebody else: its addresses are no pod's, and it is never touched. Which one is primary, the instance's
metadata say by its hardware address; device numbers do not, as some services attach it with another one than 0.

An own interface with the tag `NO_MANAGE_TAG` is *not managed*, unless it is the primary one: what pods have of it stays
theirs, and nothing else is done with it.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from itertools import count
from typing import Final

from coil.aws.ec2 import AttachmentId, InterfaceRecord
from coil.aws.metadata import MetadataInterface
from coil.eni.interface import InterfaceId, NetworkInterface
from coil.eni.tag import is_managed
from coil.kernel.family import IPNetwork
from coil.kernel.link import MacAddress
from coild.eni.absences import Absences
from coild.eni.own_writes import DESCRIBE_LAG_SECONDS, OwnWrites, Part

_DETACHING: Final = "detaching"
_FIRST_DEVICE: Final = 1
"""Of those that are attached to a running instance; 0 is for one that it is launched with."""

Picture = frozenset[tuple[InterfaceId, frozenset[IPNetwork], frozenset[str]]]
"""Interfaces with ranges and security groups: what both EC2 and the metadata service tell."""


@dataclass(slots=True)
class Inventory:
    """One per process. `tags` are those of own interfaces, `version` the IP version of pods' addresses.

    `primary_mac` is the hardware address of the primary interface; "" if nobody knows it, and then none is primary.

    `lag` is for how many seconds the metadata service may tell a picture that is past, `describe_lag` for how many EC2
    may.
    """

    tags: Mapping[str, str]
    primary_mac: MacAddress
    version: int
    lag: float
    _records: dict[InterfaceId, InterfaceRecord] = field(default_factory=dict)
    describe_lag: float = DESCRIBE_LAG_SECONDS
    _writes: OwnWrites = field(init=False)
    _absences: Absences = field(init=False)
    _resumed: float | None = None
    """When the node's earlier process was succeeded."""
    _next_look: float | None = None
    _since: dict[InterfaceId, float] = field(default_factory=dict)
    """When each was seen first."""
    _past: deque[tuple[float, Picture]] = field(default_factory=deque)
    """Since when it was so; the present one is the last."""

    def __post_init__(self) -> None:
        self._writes = OwnWrites(lag=self.describe_lag)
        self._absences = Absences(lag=self.describe_lag)

    # --- changes

    def resume(self, records: Iterable[InterfaceRecord], *, written: float, now: float) -> None:
        """Begin with what an earlier process has noted, and has changed last at the time `written`. Before anything
        else, if at all.
        """
        self._resumed = now
        for record in records:
            self._records[record.id] = record
            if written > now - self.describe_lag:
                self._writes.attached(record, at=written)

    def describe(self, records: Iterable[InterfaceRecord], *, asked: float) -> None:
        """EC2 said so in answer to a question of that time."""
        self._writes.expire(asked=asked)
        here = (each for each in records if each.device_number is not None and each.network_card == 0)
        told = {each.id: each for each in here if each.status != _DETACHING}
        found = self._writes.overlay(told.values())
        known = {each.id: each for each in self.own()}
        missed = {
            (record.id, part)
            for record in known.values()
            for part in (Part.ATTACHMENT, *record.ranges)
            if not _has(told, record.id, part)
        }
        gone = {key for key in missed if not self._writes.stands(*key) and self._absences.miss(key, asked=asked)}
        for record in known.values():
            if (record.id, Part.ATTACHMENT) in gone:
                found.pop(record.id, None)
                continue
            kept = found.setdefault(record.id, record)
            lost = {part for interface, part in gone if interface == record.id}
            still = {each for each in record.ranges if (record.id, each) in missed} - lost
            found[record.id] = replace(kept, ranges=(kept.ranges | still) - lost)
        self._records = found
        self._inherit(known, asked)
        keys = self._keys()
        self._absences.keep(keys)
        for key in keys - missed:
            self._absences.see(key, asked=asked)
        self._next_look = self._absences.next_look(asked=asked)
        if found != told and (last := self._writes.last) is not None:
            settled = last + self.describe_lag
            self._next_look = settled if self._next_look is None else min(self._next_look, settled)
        self._note(asked)

    def missed(self, interface: InterfaceId, *, now: float) -> None:
        """EC2 does not know the interface, or its attachment, in answer to a call about it: as if a description lacked
        it.
        """
        key = interface, Part.ATTACHMENT
        if self._absences.miss(key, asked=now):
            self._records.pop(interface, None)
            self._note(now)

    def assigned(self, interface: InterfaceId, ranges: Collection[IPNetwork], *, now: float) -> None:
        """EC2 has confirmed that the interface has these, too."""
        self._writes.assigned(interface, ranges, at=now)
        self._change_ranges(interface, ranges, there=True, now=now)

    def unassigned(self, interface: InterfaceId, ranges: Collection[IPNetwork], *, now: float) -> None:
        """EC2 has confirmed that it has taken these."""
        self._writes.unassigned(interface, ranges, at=now)
        self._change_ranges(interface, ranges, there=False, now=now)

    def attached(self, record: InterfaceRecord, device: int, attachment: AttachmentId, *, now: float) -> None:
        """EC2 has confirmed that the interface is attached here."""
        attached = replace(
            record, status="in-use", device_number=device, attachment=attachment, deleted_with_instance=False
        )
        self._writes.attached(attached, at=now)
        for part in (Part.ATTACHMENT, *record.ranges):
            self._absences.forget((record.id, part))
        self._records[record.id] = attached
        self._note(now)

    def detached(self, interface: InterfaceId, *, now: float) -> None:
        """EC2 has confirmed that it is not attached any more, or is just being detached."""
        self._writes.detached(interface, at=now)
        self._records.pop(interface, None)
        self._note(now)

    def flagged(self, record: InterfaceRecord, *, now: float) -> None:
        """EC2 has confirmed that the interface goes with the instance."""
        self._writes.flagged(record.id, at=now)
        self._replace(replace(record, deleted_with_instance=True), now)

    def grouped(self, record: InterfaceRecord, groups: Collection[str], *, now: float) -> None:
        """EC2 has confirmed that the interface is in these security groups."""
        self._writes.grouped(record.id, groups, at=now)
        self._replace(replace(record, groups=tuple(groups)), now)

    # --- views

    @property
    def primary(self) -> InterfaceRecord | None:
        """None before the first description."""
        return next(filter(self.is_primary, self._records.values()), None)

    def is_primary(self, record: InterfaceRecord) -> bool:
        """See the module's text."""
        return self.primary_mac != "" and record.mac == self.primary_mac

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
        return self.is_primary(record) or self.tags.items() <= record.tags.items()

    def managed(self) -> list[InterfaceRecord]:
        """Own interfaces that may be changed, by device number."""
        return [each for each in self.own() if self.is_primary(each) or is_managed(each.tags)]

    @property
    def doubted(self) -> frozenset[IPNetwork]:
        """Ranges that no pod may get anything of: nobody knows whether they are still there."""
        return self._ranges_of(self._absences.doubted)

    @property
    def doubted_interfaces(self) -> frozenset[InterfaceId]:
        """Those of which nobody knows whether they are still attached."""
        return frozenset(interface for interface, part in self._absences.doubted if part is Part.ATTACHMENT)

    @property
    def unproven(self) -> frozenset[IPNetwork]:
        """Those among them that an earlier process may have given back, and did not note."""
        return self._ranges_of(self._absences.unproven)

    @property
    def next_look(self) -> float | None:
        """When the next description can tell what the last one could not; None if that one said all."""
        return self._next_look

    @property
    def written(self) -> float | None:
        """When EC2 has confirmed the last change that descriptions may lack; None if there is none."""
        return self._writes.last

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
        attached = [(each, each.attached(is_primary=self.is_primary(each))) for each in self.own()]
        return [
            replace(interface, ranges=frozenset(each for each in record.ranges if each.version == self.version))
            for record, interface in attached
            if interface is not None
        ]

    def lowest_free_device(self) -> int:
        """The number for the next interface."""
        used = {each.device_number for each in self._records.values()}
        return next(number for number in count(_FIRST_DEVICE) if number not in used)

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

    def _inherit(self, known: Mapping[InterfaceId, InterfaceRecord], asked: float) -> None:
        """Doubt what neither the earlier process nor this one has known, while descriptions may be of before."""
        if self._resumed is None or asked >= self._resumed + self.describe_lag:
            return
        for record in self.own():
            before = known.get(record.id)
            new = {Part.ATTACHMENT, *record.ranges} if before is None else record.ranges - before.ranges
            for part in new:
                self._absences.inherit((record.id, part), at=self._resumed)

    def _keys(self) -> set[tuple[InterfaceId, Part | IPNetwork]]:
        return {(record.id, part) for record in self.own() for part in (Part.ATTACHMENT, *record.ranges)}

    def _ranges_of(self, keys: Collection[tuple[InterfaceId, Part | IPNetwork]]) -> frozenset[IPNetwork]:
        return frozenset(
            network
            for record in self.own()
            for network in record.ranges
            if (record.id, network) in keys or (record.id, Part.ATTACHMENT) in keys
        )

    def _replace(self, record: InterfaceRecord, now: float) -> None:
        if record.id in self._records:
            self._records[record.id] = record
            self._note(now)

    def _change_ranges(self, interface: InterfaceId, ranges: Collection[IPNetwork], *, there: bool, now: float) -> None:
        for network in ranges:
            self._absences.forget((interface, network))
        if (record := self._records.get(interface)) is not None:
            changed = record.ranges | set(ranges) if there else record.ranges - set(ranges)
            self._records[interface] = replace(record, ranges=changed)
        self._note(now)

    def _note(self, now: float) -> None:
        self._since = {interface: self._since.get(interface, now) for interface in self._records}
        told = [each for each in self._records.values() if each.primary is not None]
        picture = frozenset((each.id, each.ranges, frozenset(each.groups)) for each in told)
        if not self._past or self._past[-1][1] != picture:
            self._past.append((now, picture))
        self._forget_past(now)

    def _forget_past(self, now: float) -> None:
        while len(self._past) > 1 and self._past[1][0] < now - self.lag:
            self._past.popleft()


def _has(told: Mapping[InterfaceId, InterfaceRecord], interface: InterfaceId, part: Part | IPNetwork) -> bool:
    record = told.get(interface)
    return record is not None and (part is Part.ATTACHMENT or part in record.ranges)


def told_ranges(found: MetadataInterface) -> set[IPNetwork]:
    """What the metadata service says that pods may have: all but the primary address, which is the first."""
    singles: set[IPNetwork] = {IPv4Network(address) for address in found.local_ipv4s[1:]}
    return singles | set(found.ipv4_prefixes) | set(found.ipv6_prefixes)
