"""What the next process, and the pages for people, would like to know of addresses and the kernel does not say.

For each block the slot given out last and the slots that still rest; for each attachment the pod and since when. Every
give and take is one record, written at once (`coild.addresses.journal_file`), in the event loop's thread.

It is a comfort and never an authority: who holds which address is the kernel's word, and what is read here can only
make an address rest, move the place where the search for a free one goes on, or name a pod. So an old, damaged or lost
journal leads to no address in two hands, and its loss is no failure.

Times in the file are of the wall clock, as no other is the same in the next process. It may have jumped in between: an
address that rests never rests longer than one cooling period from the start.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from coil.crd.names import BlockName
from coil.ipam.attachment import AttachmentKey, ContainerId
from coil.ipam.node_ledger import Allocation
from coild.addresses.journal_file import JournalFile
from coild.model.attachment import PodName


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

    @property
    def key(self) -> AttachmentKey:
        return AttachmentKey(self.container, self.ifname)


class _Taken(_Record, frozen=True, array_like=True, tag="taken"):
    """The key is free to be forgotten, and the slot rests since then."""

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


_Entry = _Given | _Taken | _Revoked | _Last | _Left
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Entry).decode


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has an address, as far as it is known."""

    pod: PodName | None
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Resumption:
    """How an earlier process left a block: the slot given out last (−1: unknown), and for how long which slots rest."""

    last: int = -1
    rests: dict[int, float] = field(default_factory=dict)
    """Slot → seconds from now."""


class AddressJournal:
    """One per process. `cooling` in seconds; `wall` is the time of day, `clock` never jumps."""

    def __init__(
        self,
        file: JournalFile,
        *,
        cooling: float,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._cooling = cooling
        self._wall = wall
        self._clock = clock
        self._given: dict[AttachmentKey, _Given] = {}
        self._last: dict[BlockName, int] = {}
        self._resting: OrderedDict[tuple[BlockName, int], float] = OrderedDict()
        """Until when, by the clock; the oldest first."""
        for record in file.load():
            try:
                self._apply(_decode(record))
            except msgspec.MsgspecError:
                continue  # of a program that knows more kinds

    def holder(self, key: AttachmentKey) -> Holder:
        """Who holds the attachment's address, and since when; unknown for one that an earlier process did not note."""
        given = self._given.get(key)
        if given is None or not given.pod:
            return Holder(None, None)
        return Holder(PodName(given.namespace, given.pod), _moment(given.at))

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
            )
        )

    def took(self, allocation: Allocation) -> None:
        """The address came back now, and rests."""
        key = allocation.key
        self._note(_Taken(key.container_id, key.ifname, allocation.block, allocation.slot, self._wall()))

    def revoked(self, key: AttachmentKey) -> None:
        """The address came back unused."""
        self._note(_Revoked(key.container_id, key.ifname))

    def left(self, block: BlockName) -> None:
        """The block is not this node's any more."""
        self._note(_Left(block))

    def resume(
        self, held: Mapping[AttachmentKey, Allocation | None], blocks: Iterable[BlockName]
    ) -> dict[BlockName, Resumption]:
        """What to go on with, given what the kernel holds (None: in no block) and the names of this node's blocks.

        An address that was given and is not held any more was freed while nobody watched: it rests from now on. What
        is noted of other blocks and attachments is forgotten. Once, at start; the file is written anew.
        """
        for key, given in list(self._given.items()):
            allocation = held.get(key)
            if key not in held or (
                allocation is not None and (allocation.block, allocation.slot) != (given.block, given.slot)
            ):
                self._apply(_Taken(key.container_id, key.ifname, given.block, given.slot, self._wall()))
        for key, allocation in held.items():
            if allocation is not None and key not in self._given:
                # Nobody knows its pod, but should it vanish, its address has to rest.
                place = allocation.block, allocation.slot
                self._given[key] = _Given(key.container_id, key.ifname, "", "", *place, 0.0)
        own = set(blocks)
        for name in {*self._last, *(block for block, _ in self._resting)} - own:
            self._apply(_Left(name))
        found = {name: Resumption(last) for name, last in self._last.items()}
        now = self._clock()
        for (name, slot), until in self._resting.items():
            found.setdefault(name, Resumption()).rests[slot] = until - now
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
                self._resting.pop((entry.block, entry.slot), None)
            case _Taken():
                self._given.pop(AttachmentKey(entry.container, entry.ifname), None)
                self._rest(entry)
            case _Revoked():
                self._given.pop(AttachmentKey(entry.container, entry.ifname), None)
            case _Last():
                self._last[entry.block] = entry.slot
            case _Left():
                self._last.pop(entry.block, None)
                for place in [place for place in self._resting if place[0] == entry.block]:
                    del self._resting[place]

    def _rest(self, entry: _Taken) -> None:
        now = self._clock()
        while self._resting and next(iter(self._resting.values())) <= now:
            self._resting.popitem(last=False)
        left = min(entry.at + self._cooling - self._wall(), self._cooling)
        if left > 0:
            place = entry.block, entry.slot
            self._resting[place] = now + left
            self._resting.move_to_end(place)

    def _snapshot(self) -> Iterator[bytes]:
        """The records that say all that is known, and no more."""
        yield from (_encode(given) for given in self._given.values())
        yield from (_encode(_Last(block, slot)) for block, slot in self._last.items())
        now, wall = self._clock(), self._wall()
        for (block, slot), until in self._resting.items():
            if until > now:
                yield _encode(_Taken(ContainerId(""), "", block, slot, wall - self._cooling + until - now))


def _moment(at: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return None
