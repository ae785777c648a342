"""Which addresses of the node's interfaces are out, to whom, and which are still cooling down.

`update` takes in what EC2 says of the interfaces, in whatever order and however late; every CNI ADD is one `acquire`,
every DEL one `release`. What is to be given back to EC2 is withdrawn first (`withdraw`), which fails for anything in
use. All methods are synchronous and belong to one thread. Times are those of one clock of the caller's, which must not
go back.

Invariants, after every call that returns and every call that raises:
* an address is held by at most one key, and a key holds at most one address;
* an address is given only while EC2 has it for an interface whose link is up, and that is not being withdrawn, nor
  doubted;
* an address that was released is not given within the cooldown, whatever else is free: another node may have it sooner
  than the packets for its former pod have stopped, but it is not this one that brings it about;
* nothing that is held or cooling down is withdrawn.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from coil.eni.interface import PREFIX_LENGTHS, InterfaceId, NetworkInterface
from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import IPAddress, IPNetwork


@dataclass(frozen=True, slots=True)
class Allocation:
    """An address that is out, and the interface that it belongs to."""

    key: AttachmentKey
    interface: InterfaceId
    address: IPAddress


@dataclass(frozen=True, slots=True)
class InterfaceUse:
    """The counts of one interface.

    total = held + cooling + free, and what is withheld: withdrawn, doubted, of an interface that is not managed, or the
    node's own. `idle` are its ranges of which nothing is held, cooling down or withheld; the smallest addresses last,
    as those are given first.
    """

    interface: NetworkInterface
    up: bool
    total: int
    held: int
    cooling: int
    free: int
    idle: tuple[IPNetwork, ...]


class InUseError(Exception):
    """Something of what was to be withdrawn is held, or is cooling down; nothing has changed."""


@dataclass(slots=True)
class _Entry:
    interface: NetworkInterface
    up: bool
    held: dict[IPNetwork, set[IPAddress]] = field(default_factory=dict)
    """By range; ranges without a pod are left out."""
    last: dict[IPNetwork, int] = field(default_factory=dict)
    """The offset in the range that was given last: the next one is looked for behind it."""
    total: int = 0
    order: tuple[IPNetwork, ...] = ()
    """The ranges, the smallest addresses last."""

    def see(self, interface: NetworkInterface, *, up: bool) -> None:
        if interface.ranges != self.interface.ranges or not self.order:
            self.total = sum(network.num_addresses for network in interface.ranges)
            self.order = tuple(sorted(interface.ranges, key=_order, reverse=True))
            for gone in self.last.keys() - interface.ranges:
                del self.last[gone]
        self.interface, self.up = interface, up

    @property
    def held_count(self) -> int:
        return sum(map(len, self.held.values()))


class EniLedger:
    """See the module's text for the invariants. `cooldown` is in seconds."""

    def __init__(self, *, cooldown: float) -> None:
        self._cooldown = cooldown
        self._entries: dict[InterfaceId, _Entry] = {}
        self._places: dict[tuple[int, int, int], tuple[_Entry, IPNetwork]] = {}
        """What has a range, by `_index`: with every ADD and DEL all addresses that cool down are looked up."""
        self._allocations: dict[AttachmentKey, Allocation] = {}
        self._cooling: dict[IPAddress, float] = {}
        """Until when; the oldest first. Outlives the range that the address is in: it may come back."""
        self._withdrawn: set[IPNetwork] = set()
        self._doubted: frozenset[IPNetwork] = frozenset()
        self._unmanaged: frozenset[IPNetwork] = frozenset()
        """Ranges of interfaces that are to be left alone."""
        self._configured: frozenset[IPAddress] = frozenset()
        self._counted: tuple[list[InterfaceUse], float] | None = None
        """The counts of `uses`, and until when they hold if nothing changes. They are read several times per change."""

    # --- interfaces

    def update(
        self,
        interfaces: Iterable[NetworkInterface],
        *,
        up: Collection[InterfaceId],
        doubted: frozenset[IPNetwork] = frozenset(),
        configured: frozenset[IPAddress] = frozenset(),
    ) -> list[Allocation]:
        """Take in what EC2 has for this node now; `up` are the interfaces whose links are there and up.

        Of `doubted` ranges nobody knows whether EC2 has them still: what is held of them stays, and no more is given.
        Addresses that are `configured` on the node itself are neither given nor, with their ranges, withdrawn.

        Returns the allocations whose addresses are not the node's any more: their pods have lost them. They stay held
        until they are released, so that nobody gets them even if they come back.
        """
        self._counted = None
        found = {interface.id: interface for interface in interfaces}
        for gone in self._entries.keys() - found.keys():
            del self._entries[gone]
        for interface in found.values():
            entry = self._entries.setdefault(interface.id, _Entry(interface, up=False))
            entry.see(interface, up=interface.id in up)
        self._places = {
            _index(network.network_address, network.prefixlen): (entry, network)
            for entry in reversed(self._entries.values())  # of two that have one, the first has it
            for network in entry.order
        }
        self._doubted, self._configured = doubted, configured
        self._unmanaged = frozenset(each for known in found.values() if not known.managed for each in known.ranges)
        self._withdrawn &= {network for interface in found.values() for network in interface.ranges}
        for entry in self._entries.values():
            entry.held.clear()
        lost = []
        for allocation in list(self._allocations.values()):
            place = self._locate(allocation.address)
            if place is None:
                lost.append(allocation)
            else:
                entry, network = place
                entry.held.setdefault(network, set()).add(allocation.address)
                if allocation.interface != entry.interface.id:
                    # Adopted before its interface was known, or moved to another one since.
                    self._allocations[allocation.key] = replace(allocation, interface=entry.interface.id)
        return lost

    def withdraw(self, ranges: Collection[IPNetwork], *, now: float) -> None:
        """Give nothing of these ranges any more, as EC2 is asked to take them. Raises InUseError."""
        busy = self._busy(now)
        if used := sorted(str(network) for network in ranges if network in busy):
            raise InUseError(f"in use: {', '.join(used)}")
        self._counted = None
        self._withdrawn |= set(ranges)

    def reinstate(self, ranges: Collection[IPNetwork]) -> None:
        """EC2 has refused to take them, and they may be given again. Unknown ones are fine."""
        self._counted = None
        self._withdrawn -= set(ranges)

    # --- addresses

    def adopt(self, key: AttachmentKey, address: IPAddress) -> Allocation:
        """Enter what the kernel holds, whether or not EC2 says that the address is the node's. Idempotent.

        The kernel is right: a range that was being withdrawn is so no more.

        Raises InUseError when the address is another key's, or the key has another address.
        """
        if (known := self._allocations.get(key)) is not None and known.address != address:
            raise InUseError(f"{key} holds {known.address} already")
        if any(other.address == address and other.key != key for other in self._allocations.values()):
            raise InUseError(f"{address} is held by another")
        self._counted = None
        self._cooling.pop(address, None)
        place = self._locate(address)
        interface = place[0].interface.id if place is not None else InterfaceId("")
        self._allocations[key] = allocation = known or Allocation(key, interface, address)
        if place is not None:
            entry, network = place
            entry.held.setdefault(network, set()).add(address)
            self._withdrawn.discard(network)
        return allocation

    def resume(self, cooldowns: Mapping[IPAddress, float]) -> None:
        """Until when addresses cool down that an earlier process took back. Those that are held are left alone."""
        self._counted = None
        held = {allocation.address for allocation in self._allocations.values()}
        merged = self._cooling | {address: until for address, until in cooldowns.items() if address not in held}
        self._cooling = dict(sorted(merged.items(), key=lambda item: item[1]))

    def skip(self, network: IPNetwork, offset: int) -> None:
        """Give of a range what is behind that offset first."""
        for entry in self._entries.values():
            if network in entry.interface.ranges:
                entry.last[network] = offset

    def acquire(self, key: AttachmentKey, *, version: int, now: float) -> Allocation | None:
        """Give the key an address of that IP version; None when no interface has one to give.

        A known key gets what it holds. Pods are packed: of the interface and the range that serve most pods already,
        so that the others run empty and can go back.
        """
        if (known := self._allocations.get(key)) is not None:
            return known
        self._expire(now)
        for entry in sorted(self._entries.values(), key=_packing):
            if not entry.up:
                continue
            for network in sorted(entry.interface.ranges - self._withheld, key=lambda each: _filling(entry, each)):
                if network.version == version and (address := self._free_in(entry, network)) is not None:
                    self._counted = None
                    entry.held.setdefault(network, set()).add(address)
                    entry.last[network] = int(address) - int(network.network_address)
                    self._allocations[key] = allocation = Allocation(key, entry.interface.id, address)
                    return allocation
        return None

    def release(self, key: AttachmentKey, *, now: float) -> Allocation | None:
        """Take back what the key holds, to cool down from then on; None when it holds nothing."""
        allocation = self._take(key)
        if allocation is not None:
            self._expire(now)
            until = now + self._cooldown
            sooner = any(until < other for other in self._cooling.values())
            self._cooling[allocation.address] = until
            if sooner:
                self._cooling = dict(sorted(self._cooling.items(), key=lambda item: item[1]))
        return allocation

    def revoke(self, key: AttachmentKey) -> Allocation | None:
        """Take back what the key was given and never used: it need not cool down, as it had done so."""
        return self._take(key)

    def find(self, key: AttachmentKey) -> Allocation | None:
        """What the key holds."""
        return self._allocations.get(key)

    def allocations(self) -> list[Allocation]:
        """All that is out, in the order in which it was given or adopted."""
        return list(self._allocations.values())

    def place(self, address: IPAddress) -> tuple[InterfaceId, IPNetwork] | None:
        """The interface that has the address, and in which range; None if none of them has it."""
        place = self._locate(address)
        return None if place is None else (place[0].interface.id, place[1])

    def cooldowns(self, *, now: float) -> dict[IPAddress, float]:
        """The addresses that are cooling down, and until when."""
        return {address: until for address, until in self._cooling.items() if until > now}

    def uses(self, *, now: float) -> list[InterfaceUse]:
        """The counts of each interface, by device number."""
        if self._counted is None or now >= self._counted[1]:
            ends = self.cooldowns(now=now).values()
            self._counted = self._count(now), min(ends, default=inf)
        return list(self._counted[0])

    # --- inside

    def _count(self, now: float) -> list[InterfaceUse]:
        busy = self._busy(now)
        cooling = dict.fromkeys(self._entries, 0)
        unused: dict[IPNetwork, int] = {}
        """What no pod gets of ranges that are withheld, and would get otherwise."""
        for entry in self._entries.values():
            for network in entry.interface.ranges & self._withheld:
                unused[network] = network.num_addresses - len(entry.held.get(network, ()))
        for address in self.cooldowns(now=now):
            if (place := self._locate(address)) is not None:
                cooling[place[0].interface.id] += 1
                if place[1] in unused:
                    unused[place[1]] -= 1
        own = self._count_own(now)
        uses = []
        for entry in sorted(self._entries.values(), key=lambda each: each.interface.device_number):
            ranges, total = entry.interface.ranges, entry.total
            withheld = sum(unused[network] for network in ranges & self._withheld)
            held = entry.held_count
            resting = cooling[entry.interface.id]
            idle = tuple(network for network in entry.order if network not in self._withheld and network not in busy)
            free = total - withheld - held - resting - own.get(entry.interface.id, 0)
            uses.append(InterfaceUse(entry.interface, entry.up, total, held, resting, free, idle))
        return uses

    def _count_own(self, now: float) -> dict[InterfaceId, int]:
        """How many addresses of each interface would be free if they were not the node's own."""
        counts: dict[InterfaceId, int] = {}
        held = {allocation.address for allocation in self._allocations.values()} if self._configured else set()
        for address in self._configured - held - self.cooldowns(now=now).keys():
            place = self._locate(address)
            if place is not None and place[1] not in self._withheld:
                counts[place[0].interface.id] = counts.get(place[0].interface.id, 0) + 1
        return counts

    @property
    def _withheld(self) -> frozenset[IPNetwork]:
        return self._doubted | self._withdrawn | self._unmanaged

    def _locate(self, address: IPAddress) -> tuple[_Entry, IPNetwork] | None:
        single = self._places.get(_index(address, address.max_prefixlen))
        return single or self._places.get(_index(address, PREFIX_LENGTHS[address.version]))

    def _busy(self, now: float) -> set[IPNetwork]:
        """The ranges of which an address is held, cooling down, or the node's own."""
        places = map(self._locate, [*self.cooldowns(now=now), *self._configured])
        resting = {place[1] for place in places if place is not None}
        return resting | {network for entry in self._entries.values() for network in entry.held}

    def _free_in(self, entry: _Entry, network: IPNetwork) -> IPAddress | None:
        held = entry.held.get(network, set())
        size = network.num_addresses
        if len(held) == size:
            return None
        for address in _from(network, entry.last.get(network, -1) + 1):
            if address not in held and address not in self._cooling and address not in self._configured:
                return address
        return None

    def _expire(self, now: float) -> None:
        for address, until in list(self._cooling.items()):
            if until > now:
                break
            del self._cooling[address]

    def _take(self, key: AttachmentKey) -> Allocation | None:
        self._counted = None
        allocation = self._allocations.pop(key, None)
        if allocation is not None and (place := self._locate(allocation.address)) is not None:
            entry, network = place
            entry.held[network].discard(allocation.address)
            if not entry.held[network]:
                del entry.held[network]
        return allocation


def _index(address: IPAddress, length: int) -> tuple[int, int, int]:
    """That of the network of this length which has the address."""
    bits = address.max_prefixlen
    return bits, length, int(address) >> (bits - length)


def _from(network: IPNetwork, start: int) -> Iterator[IPAddress]:
    """All addresses of a range, beginning with that offset."""
    size = network.num_addresses
    # One more than can be held or cooling on a node: a /80 is never walked through.
    for step in range(min(size, 1 << 16)):
        yield network[(start + step) % size]


def _packing(entry: _Entry) -> tuple[int, int]:
    return -entry.held_count, entry.interface.device_number


def _filling(entry: _Entry, network: IPNetwork) -> tuple[int, int]:
    return -len(entry.held.get(network, ())), int(network.network_address)


def _order(network: IPNetwork) -> tuple[int, int]:
    return network.version, int(network.network_address)
