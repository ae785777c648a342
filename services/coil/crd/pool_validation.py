"""Validates AddressPools: every rule a pool must keep, as pure functions from documents to what is wrong with them.

Admission refuses what breaks any rule. Of a pool that is stored all the same, as Coil v2 stored several kinds, the
controller gives what blocks it can: none if `find_faults` finds anything, because then indices mean no addresses; all
but those with addresses of a `Conflict`, because no pod can have them or another pod may.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network

from coil.crd.address_pool import AddressPool, AddressPoolSpec
from coil.crd.cidr import parse_ipv4_cidr, parse_ipv6_cidr
from coil.crd.names import LABEL_VALUE_LENGTH
from coil.crd.validation import FieldError

MAX_BLOCKS = 2**63 - 1
"""An index is a signed 64-bit integer in the API (`format: int64`)."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A network, and where it stands. `first` and `last` are its addresses as numbers."""

    position: int
    path: str
    network: IPv4Network | IPv6Network
    first: int
    last: int

    @property
    def host_bits(self) -> int:
        return self.network.max_prefixlen - self.network.prefixlen

    def overlaps(self, other: "_Entry") -> bool:
        # By numbers, because a controller compares every pool with every other, and `ipaddress` takes its time.
        return self.first <= other.last and other.first <= self.last and self.network.version == other.network.version


@dataclass(frozen=True, slots=True)
class Conflict:
    """Addresses of one network of a pool that none of its blocks may have.

    `position` is that of the entry in `spec.subnets`; `start` and `end` are the first and the last of these addresses,
    counted from the first one of the network.
    """

    position: int
    start: int
    end: int
    error: FieldError

    @classmethod
    def of(cls, mine: _Entry, theirs: _Entry, message: str) -> "Conflict":
        start, end = max(mine.first, theirs.first) - mine.first, min(mine.last, theirs.last) - mine.first
        return cls(mine.position, start, end, FieldError(mine.path, message))


def _entry(path: str, network: IPv4Network | IPv6Network, position: int = 0) -> _Entry:
    first = int(network.network_address)
    return _Entry(position, path, network, first, first + network.num_addresses - 1)


_UNUSABLE = (
    _entry("this host", IPv4Network("0.0.0.0/8")),
    _entry("loopback", IPv4Network("127.0.0.0/8")),
    _entry("link-local, where the pods' gateway is", IPv4Network("169.254.0.0/16")),
    _entry("multicast", IPv4Network("224.0.0.0/4")),
    _entry("broadcast", IPv4Network("255.255.255.255/32")),
    _entry("this host and loopback", IPv6Network("::/127")),
    _entry("IPv4-mapped", IPv6Network("::ffff:0:0/96")),
    _entry("link-local, where the pods' gateway is", IPv6Network("fe80::/10")),
    _entry("multicast", IPv6Network("ff00::/8")),
)
"""What the kernel gives to no interface of a pod, or sends nowhere (RFC 6890; RFC 4291, 2.4)."""


def validate_pool(pool: AddressPool) -> list[FieldError]:
    """The rules that a pool keeps by itself, whatever else is in the cluster. An empty list means valid."""
    return [*find_faults(pool), *find_mixed_families(pool), *list_errors(find_conflicts(pool))]


def find_faults(pool: AddressPool) -> list[FieldError]:
    """What leaves the indices of blocks without a meaning, or their names without a place; no block can be given."""
    errors: list[FieldError] = []
    if len(pool.metadata.name) > LABEL_VALUE_LENGTH:
        message = f"must be no more than {LABEL_VALUE_LENGTH} characters: blocks carry it as a label"
        errors.append(FieldError("metadata.name", message))
    bits = pool.spec.block_size_bits
    if bits < 0:
        errors.append(FieldError("spec.blockSizeBits", "must not be negative"))
    if not pool.spec.subnets:
        errors.append(FieldError("spec.subnets", "must have at least one entry"))

    entries, unparsable = _parse_entries(pool.spec)
    errors += unparsable
    for position, subnet in enumerate(pool.spec.subnets):
        if subnet.ipv4 is None and subnet.ipv6 is None:
            errors.append(FieldError(f"spec.subnets[{position}]", "must have an ipv4 or an ipv6 network"))
    for entry in entries:
        if entry.host_bits < bits:
            errors.append(FieldError(entry.path, f"{entry.network} is smaller than a block of 2^{bits} addresses"))
    errors += _unequal_pairs(pool, entries)
    if not errors and sum(2 ** (entry.host_bits - bits) for entry in entries) > MAX_BLOCKS:
        errors.append(FieldError("spec.subnets", "hold more blocks than an index of 64 bits can number"))
    return errors


def find_mixed_families(pool: AddressPool) -> list[FieldError]:
    """The entries whose families differ from those of the first one."""
    mixes = [(subnet.ipv4 is not None, subnet.ipv6 is not None) for subnet in pool.spec.subnets]
    # A pod's families would otherwise depend on which block happened to have room.
    return [
        FieldError(f"spec.subnets[{position}]", "must have the same address families as the first entry")
        for position, mix in enumerate(mixes)
        if any(mix) and mix != mixes[0]
    ]


def find_conflicts(pool: AddressPool) -> Iterator[Conflict]:
    """Addresses that no pod can have, and those that an earlier entry has as well. In the order of the entries."""
    entries, _ = _parse_entries(pool.spec)
    for position, entry in enumerate(entries):
        message = ""
        for reserved in filter(entry.overlaps, _UNUSABLE):
            # The first one tells enough: 0.0.0.0/0 has them all.
            message = message or (
                f"{entry.network} has addresses that no pod can have: {reserved.network} ({reserved.path})"
            )
            yield Conflict.of(entry, reserved, message)
        for earlier in entries[:position]:
            if entry.overlaps(earlier):
                yield Conflict.of(entry, earlier, f"{entry.network} overlaps {earlier.network} at {earlier.path}")


def list_errors(conflicts: Iterable[Conflict]) -> list[FieldError]:
    """What is told about them, each once."""
    return list(dict.fromkeys(conflict.error for conflict in conflicts))


def find_overlaps(pool: AddressPool, others: Iterable[AddressPool]) -> Iterator[Conflict]:
    """Addresses that another pool has as well. A pool of the same name is skipped."""
    entries, _ = _parse_entries(pool.spec)
    for other in others:
        if other.metadata.name == pool.metadata.name:
            continue
        theirs, _ = _parse_entries(other.spec)
        for mine in entries:
            for their in theirs:
                if mine.overlaps(their):
                    message = f"{mine.network} overlaps {their.network} of the pool {other.metadata.name!r}"
                    yield Conflict.of(mine, their, message)


def validate_pool_update(old: AddressPool, new: AddressPool) -> list[FieldError]:
    """The rules of a change, on top of `validate_pool(new)`: a pool may only grow at its end.

    Block indices count through the subnets in order, so anything else would move existing blocks.
    """
    errors: list[FieldError] = []
    if new.spec.block_size_bits != old.spec.block_size_bits:
        errors.append(FieldError("spec.blockSizeBits", "is immutable"))
    for position, subnet in enumerate(old.spec.subnets):
        path = f"spec.subnets[{position}]"
        if position >= len(new.spec.subnets):
            errors.append(FieldError(path, "must not be removed"))
        elif new.spec.subnets[position] != subnet:
            errors.append(FieldError(path, "is immutable; new subnets go to the end"))
    return errors


def validate_disjoint(pool: AddressPool, others: Iterable[AddressPool]) -> list[FieldError]:
    """Each entry of `pool` that shares addresses with another pool. A pool of the same name is skipped."""
    return list_errors(find_overlaps(pool, others))


def older_pools(pool: AddressPool, others: Iterable[AddressPool]) -> list[AddressPool]:
    """Those that were created before it; of one second, the first by name."""
    return [other for other in others if _age(other) < _age(pool)]


def _age(pool: AddressPool) -> tuple[str, str]:
    # ISO timestamps in UTC order as text. A pool without one has not been stored yet, so it comes last.
    created = pool.metadata.creation_timestamp
    return ("~" if created is None else created.isoformat(), pool.metadata.name)


def pool_networks(spec: AddressPoolSpec) -> list[tuple[str, IPv4Network | IPv6Network]]:
    """The networks of a pool, each with its place in the document; what cannot be read is passed over."""
    entries, _ = _parse_entries(spec)
    return [(entry.path, entry.network) for entry in entries]


@lru_cache(maxsize=1024)
def _parse_entries(spec: AddressPoolSpec) -> tuple[tuple[_Entry, ...], tuple[FieldError, ...]]:
    """Remembered, because a controller reads the same few pools again at every decision."""
    entries: list[_Entry] = []
    errors: list[FieldError] = []
    for position, subnet in enumerate(spec.subnets):
        for field, text, parse in (("ipv4", subnet.ipv4, parse_ipv4_cidr), ("ipv6", subnet.ipv6, parse_ipv6_cidr)):
            if text is None:
                continue
            path = f"spec.subnets[{position}].{field}"
            try:
                network = parse(text, strict=False)
            except ValueError as error:
                errors.append(FieldError(path, str(error)))
            else:
                entries.append(_entry(path, network, position))
    return tuple(entries), tuple(errors)


def _unequal_pairs(pool: AddressPool, entries: Sequence[_Entry]) -> Iterator[FieldError]:
    by_path = {entry.path: entry for entry in entries}
    for position in range(len(pool.spec.subnets)):
        path = f"spec.subnets[{position}]"
        ipv4, ipv6 = by_path.get(f"{path}.ipv4"), by_path.get(f"{path}.ipv6")
        if ipv4 and ipv6 and ipv4.host_bits != ipv6.host_bits:
            yield FieldError(path, f"{ipv4.network} and {ipv6.network} must hold equally many addresses")
