"""The addresses of one subnet in memory: who has which is the interfaces' affair, what is free is known here."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from random import Random

from coil.aws.ec2 import SubnetRecord
from coil.eni.interface import SubnetId
from coil.kernel.family import IPNetwork

PREFIX_SIZE = 16
RESERVED_AT_START, RESERVED_AT_END = 4, 1
"""The first four addresses of a subnet and the last one (VPC User Guide, "Subnet CIDR blocks")."""


@dataclass(slots=True, kw_only=True)
class MemorySubnet:
    """Addresses and aligned /28 come in no order, as AWS gives them: whoever relies on one fails."""

    id: SubnetId
    vpc: str
    zone: str
    ipv4: IPv4Network
    ipv6: IPv6Network | None
    tags: dict[str, str]
    _first: int = field(init=False)
    _size: int = field(init=False)
    _taken: set[int] = field(init=False)
    """As offsets in the subnet, the reserved ones among them."""
    _used_of_block: Counter[int] = field(init=False)
    """By number of the /28: how many of its addresses are taken."""
    _ipv6_prefixes: set[IPNetwork] = field(init=False)

    def __post_init__(self) -> None:
        self._first = int(self.ipv4.network_address)
        self._size = self.ipv4.num_addresses
        self._taken = set()
        self._used_of_block = Counter()
        self._ipv6_prefixes = set()
        for offset in (*range(RESERVED_AT_START), *range(self._size - RESERVED_AT_END, self._size)):
            self._mark(offset)

    @property
    def free(self) -> int:
        """Single addresses."""
        return self._size - len(self._taken)

    @property
    def record(self) -> SubnetRecord:
        """As it is described."""
        return SubnetRecord(
            id=self.id, vpc=self.vpc, zone=self.zone, ipv4=self.ipv4, free=self.free, tags=dict(self.tags)
        )

    def take_addresses(self, count: int, random: Random) -> list[IPv4Address]:
        """So many, of at least so many that are free."""
        if self.free > self._size // 4:
            offsets: list[int] = []
            while len(offsets) < count:
                if (offset := random.randrange(self._size)) not in self._taken:
                    self._mark(offset)
                    offsets.append(offset)
        else:
            offsets = random.sample([each for each in range(self._size) if each not in self._taken], count)
            for offset in offsets:
                self._mark(offset)
        return [IPv4Address(self._first + offset) for offset in offsets]

    def take_prefixes(self, count: int, random: Random) -> list[IPv4Network] | None:
        """So many, or None where there are not as many."""
        if not count:
            return []
        free = [block for block in range(self._size // PREFIX_SIZE) if not self._used_of_block[block]]
        if len(free) < count:
            return None
        blocks = random.sample(free, count)
        for block in blocks:
            for offset in range(block * PREFIX_SIZE, (block + 1) * PREFIX_SIZE):
                self._mark(offset)
        return [IPv4Network((self._first + block * PREFIX_SIZE, 28)) for block in blocks]

    def take_ipv6_prefix(self, random: Random) -> IPv6Network:
        """A /80 of a subnet with IPv6."""
        assert self.ipv6 is not None
        first = int(self.ipv6.network_address)
        while True:
            prefix = IPv6Network((first + (random.randrange(1 << (80 - self.ipv6.prefixlen)) << 48), 80))
            if prefix not in self._ipv6_prefixes:
                self._ipv6_prefixes.add(prefix)
                return prefix

    def give_back(self, ranges: Iterable[IPNetwork]) -> None:
        """What was taken."""
        for network in ranges:
            if network.version == 4:
                start = int(network.network_address) - self._first
                for offset in range(start, start + network.num_addresses):
                    self._taken.remove(offset)
                    self._used_of_block[offset // PREFIX_SIZE] -= 1
            else:
                self._ipv6_prefixes.remove(network)

    def _mark(self, offset: int) -> None:
        assert offset not in self._taken
        self._taken.add(offset)
        self._used_of_block[offset // PREFIX_SIZE] += 1
