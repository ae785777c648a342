"""Which addresses the blocks of all pools hold, to ask whether a block that is about to be made would share one.

Names keep two blocks of one index apart, and admission keeps pools apart. This map is for the days when something got
around admission: a pool edited in the middle, two that overlap since one has grown, a block made or edited by hand.
Without it such a mistake would give two pods one address.

Networks are aligned to their size, so that of two that overlap one holds the other: whoever overlaps a planned network
begins inside it, or is one of the few networks around it, of which there is one for each size in use.
"""

from bisect import bisect_left, insort
from collections import Counter
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from coil.crd.address_block import AddressBlock
from coil.crd.names import BlockName
from coil.ipam.layout import PlannedBlock

_Entry = tuple[int, int, BlockName]
"""First address, host bits, whose."""

_FEW = 64
"""New entries up to which placing each is quicker than sorting them all."""


class AddressMap:
    """All methods are synchronous. A network that does not parse is held by nobody: nodes do not take it in either.

    Blocks are read when the map is first asked, so that the thousands of a start do not delay it.
    """

    def __init__(self) -> None:
        self._ipv4 = _FamilyMap(IPv4Address, 32)
        self._ipv6 = _FamilyMap(IPv6Address, 128)

    def observe(self, old: AddressBlock | None, new: AddressBlock | None) -> None:
        """A block appeared (no `old`), changed, or went (no `new`)."""
        if old is not None and new is not None and (old.ipv4, old.ipv6) == (new.ipv4, new.ipv6):
            return
        if old is not None:
            self._ipv4.remove(old.ipv4, old.name)
            self._ipv6.remove(old.ipv6, old.name)
        if new is not None:
            self._ipv4.add(new.ipv4, new.name)
            self._ipv6.add(new.ipv6, new.name)

    def holder_of(self, network: IPv4Network | IPv6Network) -> BlockName | None:
        """A block that has an address of the network."""
        return (self._ipv4 if network.version == 4 else self._ipv6).holder(network)

    def holder(self, planned: PlannedBlock) -> BlockName | None:
        """A block that has an address of the planned one."""
        holder = None
        if planned.ipv4 is not None:
            holder = self._ipv4.holder(planned.ipv4)
        if planned.ipv6 is not None and holder is None:
            holder = self._ipv6.holder(planned.ipv6)
        return holder


class _FamilyMap:
    """One family's networks, as sorted entries and as texts that are still to be read."""

    def __init__(self, kind: type[IPv4Address] | type[IPv6Address], width: int) -> None:
        self._kind = kind
        self._width = width
        self._sorted: list[_Entry] = []
        self._unread: list[tuple[str, BlockName]] = []
        self._sizes: Counter[int] = Counter()

    def add(self, text: str | None, name: BlockName) -> None:
        if text is not None:
            self._unread.append((text, name))

    def remove(self, text: str | None, name: BlockName) -> None:
        self._read()
        entry = None if text is None else self._parse(text, name)
        if entry is None:
            return
        position = bisect_left(self._sorted, entry)
        if position < len(self._sorted) and self._sorted[position] == entry:
            del self._sorted[position]
            self._sizes[entry[1]] -= 1

    def holder(self, network: IPv4Network | IPv6Network) -> BlockName | None:
        self._read()
        first, last = int(network.network_address), int(network.broadcast_address)
        if (inside := self._next(first, 0)) is not None and inside[0] <= last:
            return inside[2]
        for bits, count in self._sizes.items():
            start = first >> bits << bits
            if count and (around := self._next(start, bits)) is not None and around[:2] == (start, bits):
                return around[2]
        return None

    def _next(self, first: int, bits: int) -> _Entry | None:
        """The first entry that begins there or later, and is of that size or larger if it begins there."""
        position = bisect_left(self._sorted, (first, bits, ""))
        return self._sorted[position] if position < len(self._sorted) else None

    def _read(self) -> None:
        entries = [entry for text, name in self._unread if (entry := self._parse(text, name)) is not None]
        self._unread.clear()
        self._sizes.update(bits for _, bits, _ in entries)
        if len(entries) > _FEW:
            self._sorted = sorted(self._sorted + entries)
        else:
            for entry in entries:
                insort(self._sorted, entry)

    def _parse(self, text: str, name: BlockName) -> _Entry | None:
        # Not by `coil.crd.cidr`, which takes its time to say what is wrong.
        address, _, prefix = text.partition("/")
        try:
            bits = self._width - int(prefix)
            first = int(self._kind(address))
        except ValueError:
            return None
        return (first >> bits << bits, bits, name) if 0 <= bits <= self._width else None
