"""Which addresses of a gateway are in use, and which EIP an unused one would be.

By index: the nth IPv4 address goes with the nth IPv6 address. Some pairs do not (a policy has asked for such a pair, or
a range was added before another), and leave the halves of two other pairs over. Those are joined, lowest with lowest,
so that in a gateway of both families every EIP is a pair and none of the addresses is lost.

Invariant: nothing here grows with the ranges, only with what is in use.
"""

from bisect import bisect_left, insort
from ipaddress import IPv4Address, IPv6Address

from coil.eip.address_range import AddressRanges
from coil.eip.claim import Eip, GatewayRules


class EipPool:
    """Indices of what is taken. `_touched` are those of which at least one half is taken; `_over4` and `_over6` those
    of which just the IPv4, or just the IPv6 address is free. All sorted.
    """

    def __init__(self, rules: GatewayRules) -> None:
        self._ipv4 = rules.ipv4 if rules.ipv4.size else None
        self._ipv6 = rules.ipv6 if rules.ipv6.size else None
        self.size = max(rules.ipv4.size, rules.ipv6.size)
        self._taken4: set[int] = set()
        self._taken6: set[int] = set()
        self._touched: list[int] = []
        self._over4: list[int] = []
        self._over6: list[int] = []

    @property
    def free(self) -> int:
        """How many EIPs can be made of addresses that nobody uses."""
        return self.size - len(self._touched) + min(len(self._over4), len(self._over6))

    def trim(self, eip: Eip) -> Eip | None:
        """What of it lies in the ranges."""
        ipv4 = eip.ipv4 if eip.ipv4 is not None and _within(eip.ipv4, self._ipv4) else None
        ipv6 = eip.ipv6 if eip.ipv6 is not None and _within(eip.ipv6, self._ipv6) else None
        return None if ipv4 is None and ipv6 is None else Eip(ipv4, ipv6)

    def take(self, eip: Eip) -> None:
        """Both halves, which lie in the ranges and are free, are in use from now on."""
        paired = self._ipv4 is not None and self._ipv6 is not None
        for address, ranges, taken, other, over, other_over in (
            (eip.ipv4, self._ipv4, self._taken4, self._taken6, self._over4, self._over6),
            (eip.ipv6, self._ipv6, self._taken6, self._taken4, self._over6, self._over4),
        ):
            if address is None or ranges is None:
                continue
            index = ranges.index(address)
            taken.add(index)
            if index in other:
                _discard(over, index)
            else:
                insort(self._touched, index)
                if paired:
                    insort(other_over, index)

    def complete(self, eip: Eip) -> Eip:
        """A lone address with a free partner of the other family, if the gateway has both families and one is left.

        The addresses that `eip` has may be taken already, the partner is free.
        """
        if self._ipv4 is None or self._ipv6 is None:
            return eip
        if eip.ipv6 is None and eip.ipv4 is not None:
            partner = _partner(self._ipv4.index(eip.ipv4), self._taken6, self._over6)
            return eip if partner is None else Eip(eip.ipv4, IPv6Address(self._ipv6.number(partner)))
        if eip.ipv4 is None and eip.ipv6 is not None:
            partner = _partner(self._ipv6.index(eip.ipv6), self._taken4, self._over4)
            return eip if partner is None else Eip(IPv4Address(self._ipv4.number(partner)), eip.ipv6)
        return eip

    def unused(self, number: int) -> Eip:
        """One of the `free` EIPs, by its number: whole pairs by index, then joined halves. Raises IndexError."""
        straight = self.size - len(self._touched)
        if number < straight:
            # The touched index i is preceded by i − (touched indices before it) untouched ones.
            skipped = bisect_left(range(len(self._touched)), number + 1, key=lambda at: self._touched[at] - at)
            return self._eip(number + skipped, number + skipped)
        return self._eip(self._over4[number - straight], self._over6[number - straight])

    def _eip(self, index4: int, index6: int) -> Eip:
        return Eip(
            None if self._ipv4 is None else IPv4Address(self._ipv4.number(index4)),
            None if self._ipv6 is None else IPv6Address(self._ipv6.number(index6)),
        )


def _within(address: IPv4Address | IPv6Address, ranges: AddressRanges | None) -> bool:
    return ranges is not None and address in ranges


def _partner(index: int, taken: set[int], over: list[int]) -> int | None:
    if index not in taken:
        return index
    return over[0] if over else None


def _discard(items: list[int], item: int) -> None:
    place = bisect_left(items, item)
    if place < len(items) and items[place] == item:
        del items[place]
