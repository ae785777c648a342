"""Networks of which some contain others, and those that no other one contains: together, they have all addresses."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator

from coil.kernel.family import Family, IPNetwork
from coil.kernel.interval import Span, span_of, span_word


class NetworkUnion:
    """Of one family. Costs O(networks within the one that comes or goes), and their search."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._spans: set[Span] = set()
        self._sorted: list[tuple[int, int]] = []
        """Where each begins, and where it ends as a negative number: what contains others comes before them."""
        self._lengths: Counter[int] = Counter()
        """How many there are of each size, as the number of bits that vary."""

    def add(self, network: IPNetwork) -> tuple[list[str], list[str]]:
        """One that is not there. Returns the words of the outermost networks that go, and of those that come."""
        span = span_of(network)
        self._spans.add(span)
        insort(self._sorted, (span[0], -span[1]))
        self._lengths[_bits(span)] += 1
        if self._is_covered(span):
            return [], []
        return [self._word(inner) for inner in self._outermost_within(span)], [self._word(span)]

    def remove(self, network: IPNetwork) -> tuple[list[str], list[str]]:
        """One that is there; as `add`."""
        span = span_of(network)
        self._spans.remove(span)
        del self._sorted[bisect_left(self._sorted, (span[0], -span[1]))]
        self._lengths[_bits(span)] -= 1
        if self._is_covered(span):
            return [], []
        return [self._word(span)], [self._word(inner) for inner in self._outermost_within(span)]

    def _is_covered(self, span: Span) -> bool:
        """Whether another one contains it."""
        own = _bits(span)
        return any(
            count and bits > own and (first := span[0] >> bits << bits, first | (1 << bits) - 1) in self._spans
            for bits, count in self._lengths.items()
        )

    def _outermost_within(self, span: Span) -> Iterator[Span]:
        """Of those that it contains, other than itself, the ones that no other of them contains."""
        position = bisect_left(self._sorted, (span[0], -span[1]))
        behind = -1
        while position < len(self._sorted) and self._sorted[position][0] <= span[1]:
            first, last = self._sorted[position][0], -self._sorted[position][1]
            if first > behind and (first, last) != span:
                yield first, last
                behind = last
            position += 1

    def _word(self, span: Span) -> str:
        return span_word(span, self._family)


def _bits(span: Span) -> int:
    return (span[1] - span[0]).bit_length()
