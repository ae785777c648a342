"""What the next process and the inspection page need to know about addresses and the kernel does not say.

For each block the slot given out last and the slots that are still cooling down; for each attachment its pod, and since
when; and of the addresses that came back last, which pod had them. Every allocation and release is one record, written
at once (`coild.model.journal_file`), in the event loop's thread.

The journal is a hint and never an authority: the kernel says who holds which address, and what is read here can only
keep an address back for a while, move the position from which the search for a free one goes on, or name a pod. So an
old, damaged or lost journal never gives an address to two pods, and its loss is not an error.

Times in the file are of the wall clock, as no other is the same in the next process. It may have jumped in between: no
address is kept back for longer than one cooldown from the start.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec

from coil.crd.names import BlockName
from coil.ipam.node_ledger import Allocation
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coild.model.address_source import NONE_ENDED, Ended
from coild.model.attachment import UNKNOWN_HOLDER, Holder, PodName
from coild.model.journal_file import JournalFile


class _Record(msgspec.Struct, frozen=True, array_like=True):
    pass


class _Given(_Record, frozen=True, array_like=True, tag="given"):
    container: ContainerId
    ifname: str
    namespace: str
    pod: str
    block: BlockName
    slot: int
    at: float
    """Seconds since 1970."""
    uid: str = ""
    """Of the pod; "" in records of former releases."""

    @property
    def key(self) -> AttachmentKey:
        return AttachmentKey(self.container, self.ifname)


class _Taken(_Record, frozen=True, array_like=True, tag="taken"):
    """The key may be forgotten; the slot is cooling down since then."""

    container: ContainerId
    ifname: str
    block: BlockName
    slot: int
    at: float


class _Revoked(_Record, frozen=True, array_like=True, tag="revoked"):
    container: ContainerId
    ifname: str


class _Last(_Record, frozen=True, array_like=True, tag="last"):
    block: BlockName
    slot: int


class _Left(_Record, frozen=True, array_like=True, tag="left"):
    block: BlockName


class _Had(_Record, frozen=True, array_like=True, tag="had"):
    """Who had an address last. `since` and `until` in seconds since 1970."""

    container: ContainerId
    ifname: str
    namespace: str
    pod: str
    block: BlockName
    slot: int
    since: float
    until: float


_Entry = _Given | _Taken | _Revoked | _Last | _Left | _Had
_NOBODY: Final = ContainerId("")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Entry).decode


FORMER_HOLDERS: Final = 1024
"""Of how many addresses it is remembered who had them."""


@dataclass(frozen=True, slots=True)
class FormerHolder:
    """Who had an address last, before it came back."""

    key: AttachmentKey
    pod: PodName
    since: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Resumption:
    """How an earlier process left a block: the slot given out last (−1: unknown), and which slots are cooling down."""

    last: int = -1
    cooldowns: dict[int, float] = field(default_factory=dict)
    """For how long: slot → seconds from now."""


class AddressJournal:
    """One per process. `cooldown` in seconds; `wall` is the time of day, `clock` never jumps."""

    def __init__(
        self,
        file: JournalFile,
        *,
        cooldown: float,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._cooldown = cooldown
        self._wall = wall
        self._clock = clock
        self._given: dict[AttachmentKey, _Given] = {}
        self._last: dict[BlockName, int] = {}
        self._cooldowns: OrderedDict[tuple[BlockName, int], float] = OrderedDict()
        """Until when, by the clock; the oldest first."""
        self._had: OrderedDict[tuple[BlockName, int], _Had] = OrderedDict()
        """In the order in which the addresses came back."""
        for record in file.load():
            try:
                self._apply(_decode(record))
            except msgspec.MsgspecError:
                continue  # written by a newer program

    def holder(self, key: AttachmentKey) -> Holder:
        """Which pod the attachment is, and since when; unknown for one that an earlier process did not record."""
        given = self._given.get(key)
        if given is None or not given.pod:
            return UNKNOWN_HOLDER
        return Holder(PodName(given.namespace, given.pod, given.uid), _moment(given.at))

    def former(self, block: BlockName) -> dict[int, FormerHolder]:
        """Who had addresses of the block before, by slot: the last pod of each, of the last 1024 that came back."""
        return {
            slot: FormerHolder(
                AttachmentKey(had.container, had.ifname),
                PodName(had.namespace, had.pod),
                _moment(had.since),
                _moment(had.until),
            )
            for (name, slot), had in self._had.items()
            if name == block
        }

    def gave(self, allocation: Allocation, pod: PodName) -> None:
        """The pod was given the address now."""
        key = allocation.key
        self._note(
            _Given(
                key.container_id,
                key.ifname,
                pod.namespace,
                pod.name,
                allocation.block,
                allocation.slot,
                self._wall(),
                pod.uid,
            )
        )

    def took(self, allocation: Allocation, *, at: float | None = None) -> None:
        """The address came back `at` that time of the clock, or now, and is cooling down since then."""
        key = allocation.key
        self._note(_Taken(key.container_id, key.ifname, allocation.block, allocation.slot, self._time_of_day(at)))

    def revoked(self, allocation: Allocation, *, cooldown_left: float) -> None:
        """The address came back unused. It still has so many seconds to cool down from a pod before, if any."""
        key = allocation.key
        if cooldown_left > 0:
            at = self._wall() + cooldown_left - self._cooldown
            self._note(_Taken(_NOBODY, "", allocation.block, allocation.slot, at))
        self._note(_Revoked(key.container_id, key.ifname))

    def left(self, block: BlockName) -> None:
        """The block is not this node's any more."""
        self._note(_Left(block))

    def resume(
        self,
        held: Mapping[AttachmentKey, Allocation | None],
        blocks: Iterable[BlockName],
        ended: Ended = NONE_ENDED,
    ) -> dict[BlockName, Resumption]:
        """What to go on with, given what the kernel holds (None: in no block) and the names of this node's blocks.

        An address that was given and is not held any more was freed while no process watched: its cooldown begins when
        its attachment has `ended`, or else now.
        What is recorded of other blocks and attachments is dropped. Once, at start; the file is rewritten.
        """
        for key, given in list(self._given.items()):
            allocation = held.get(key)
            if key not in held or (
                allocation is not None and (allocation.block, allocation.slot) != (given.block, given.slot)
            ):
                freed = self._time_of_day(ended.get(key))
                self._apply(_Taken(key.container_id, key.ifname, given.block, given.slot, freed))
        for key, allocation in held.items():
            if allocation is not None and key not in self._given:
                # Its pod is not known; but when it vanishes, its address has to cool down.
                self._given[key] = _Given(key.container_id, key.ifname, "", "", allocation.block, allocation.slot, 0.0)
        own = set(blocks)
        for name in {*self._last, *(block for block, _ in self._cooldowns), *(block for block, _ in self._had)} - own:
            self._apply(_Left(name))
        found = {name: Resumption(last) for name, last in self._last.items()}
        now = self._clock()
        for (name, slot), until in self._cooldowns.items():
            found.setdefault(name, Resumption()).cooldowns[slot] = until - now
        self._file.replace(self._snapshot())
        return found

    def close(self) -> None:
        self._file.close()

    # --- inside

    def _note(self, entry: _Entry) -> None:
        self._apply(entry)
        self._file.append(_encode(entry))
        if self._file.grown:
            self._file.replace(self._snapshot())

    def _apply(self, entry: _Entry) -> None:
        match entry:
            case _Given():
                self._given[entry.key] = entry
                self._last[entry.block] = entry.slot
                self._cooldowns.pop((entry.block, entry.slot), None)
            case _Taken():
                given = self._given.pop(AttachmentKey(entry.container, entry.ifname), None)
                if given is not None and given.pod:
                    holder = given.container, given.ifname, given.namespace, given.pod
                    self._keep(_Had(*holder, given.block, given.slot, given.at, entry.at))
                self._start_cooldown(entry)
            case _Revoked():
                self._given.pop(AttachmentKey(entry.container, entry.ifname), None)
            case _Last():
                self._last[entry.block] = entry.slot
            case _Left():
                self._last.pop(entry.block, None)
                for slots in (self._cooldowns, self._had):
                    for slot in [slot for slot in slots if slot[0] == entry.block]:
                        del slots[slot]
            case _Had():
                self._keep(entry)

    def _keep(self, had: _Had) -> None:
        slot = had.block, had.slot
        self._had[slot] = had
        self._had.move_to_end(slot)
        if len(self._had) > FORMER_HOLDERS:
            self._had.popitem(last=False)

    def _time_of_day(self, at: float | None) -> float:
        """What the wall clock says of a moment of the clock that is past; None: of now."""
        return self._wall() - (0.0 if at is None else max(0.0, self._clock() - at))

    def _start_cooldown(self, entry: _Taken) -> None:
        now = self._clock()
        while self._cooldowns and next(iter(self._cooldowns.values())) <= now:
            self._cooldowns.popitem(last=False)
        left = min(entry.at + self._cooldown - self._wall(), self._cooldown)
        if left > 0:
            slot = entry.block, entry.slot
            self._cooldowns[slot] = now + left
            self._cooldowns.move_to_end(slot)

    def _snapshot(self) -> Iterator[bytes]:
        """The fewest records that say all that is known."""
        yield from (_encode(given) for given in self._given.values())
        yield from (_encode(_Last(block, slot)) for block, slot in self._last.items())
        yield from (_encode(had) for had in self._had.values())
        now, wall = self._clock(), self._wall()
        for (block, slot), until in self._cooldowns.items():
            if until > now:
                yield _encode(_Taken(_NOBODY, "", block, slot, wall - self._cooldown + until - now))


def _moment(at: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return None
