"""The addresses that a gateway may give out, by their position in order: never expanded, so that a /64 costs what an
address costs.

Built from the texts of `spec.ranges`, whose grammar is `coil.crd.cidr`'s. Invariants: spans are sorted and
disjoint, whatever the order and the overlaps of the texts; `nth` and `index` are inverse to each other. In a gateway of
both families the nth IPv4 address goes with the nth IPv6 address.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from itertools import accumulate, pairwise

from coil.crd.cidr import merge_spans, parse_spans
from coil.kernel.family import Family, IPAddress


class RangeError(ValueError):
    """The ranges of a gateway cannot be used. The message names the text, and what to write instead."""


@dataclass(frozen=True, slots=True)
class AddressRanges:
    """`spans` are first and last address as numbers; `before` is how many addresses lie before each span."""

    family: Family
    spans: tuple[tuple[int, int], ...]
    before: tuple[int, ...]

    @property
    def size(self) -> int:
        if not self.spans:
            return 0
        first, last = self.spans[-1]
        return self.before[-1] + last - first + 1

    def nth(self, index: int) -> IPAddress:
        """The address of that position in order. Raises IndexError outside 0 … size − 1."""
        number = self.number(index)
        return IPv4Address(number) if self.family is Family.IPV4 else IPv6Address(number)

    def number(self, index: int) -> int:
        """`nth` as a number."""
        if not 0 <= index < self.size:
            raise IndexError(f"address {index} of {self.size}")
        position = bisect_right(self.before, index) - 1
        return self.spans[position][0] + index - self.before[position]

    def index(self, address: IPAddress) -> int:
        """The position of `address`. Raises ValueError when it is not in any span."""
        if Family.of(address) is self.family:
            number = int(address)
            position = bisect_right(self.spans, number, key=lambda span: span[0]) - 1
            if position >= 0 and number <= self.spans[position][1]:
                return self.before[position] + number - self.spans[position][0]
        raise ValueError(f"{address} is not in the ranges")

    def __contains__(self, address: IPAddress) -> bool:
        try:
            self.index(address)
        except ValueError:
            return False
        return True

    def overlaps(self, other: "AddressRanges") -> bool:
        """Whether an address is in both."""
        if self.family is not other.family:
            return False
        joined = sorted(self.spans + other.spans)
        return any(last >= first for (_, last), (first, _) in pairwise(joined))


def parse_ranges(texts: Iterable[str], family: Family) -> AddressRanges:
    """The addresses of all `texts`, each counted once. Empty texts are none; raises RangeError at a wrong one."""
    try:
        spans = tuple(merge_spans(parse_spans(texts, 4 if family is Family.IPV4 else 6)))
    except ValueError as error:
        raise RangeError(str(error)) from error
    before = accumulate((last - first + 1 for first, last in spans[:-1]), initial=0)
    return AddressRanges(family, spans, tuple(before)[: len(spans)])
