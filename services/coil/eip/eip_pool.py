"""Which addresses of a gateway are in use, by whom and where, and which EIP an unused one would be.

By index: the nth IPv4 address goes with the nth IPv6 address. Some pairs do not (a policy has asked for such a pair, or
a range was added before another), and leave the halves of two other pairs over. Those are joined, lowest with lowest,
so that in a gateway of both families every EIP is a pair and none of the addresses is lost.

Invariants: nothing here grows with the ranges, only with what is in use. An address is in one EIP, and taken from the
pool; an EIP is assigned once, on a node or, where none is ready, on None.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.address_range import AddressRanges
from coil.eip.claim import Eip, GatewayRules
from coil.kernel.family import IPAddress


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
    position = bisect_left(items, item)
    if position < len(items) and items[position] == item:
        del items[position]


@dataclass(slots=True, eq=False)
class Binding:
    """An EIP in use. `node` says nothing before it is `assigned`; `tenant` is that of all its policies."""

    eip: Eip
    tenant: str
    policies: list[PolicyRef] = field(default_factory=list)
    node: NodeName | None = None
    assigned: bool = False


class EipIndex:
    """Who is bound to which EIP, and on which node that is, while a gateway is being placed. `bindings` are in the
    order of their making.
    """

    def __init__(self, rules: GatewayRules) -> None:
        self.pool = EipPool(rules)
        self.bindings: list[Binding] = []
        self._limit = rules.address_limit
        self._by_address: dict[IPAddress, Binding] = {}
        self.reserved: set[IPAddress] = set()
        """Nobody's that is not bound already."""
        self._on: dict[tuple[NodeName | None, str], list[Binding]] = {}
        self._unfilled: dict[tuple[NodeName | None, str], dict[int, Binding]] = {}

    def adopt(self, eip: Eip, tenant: str) -> Binding | None:
        """The binding that `eip` means, perhaps another tenant's; made if nobody has it. A lone address gets a partner
        where there is one.

        None when one of the addresses is bound, and not to that partner. `eip` lies in the ranges.
        """
        found = {id(binding): binding for address in _addresses(eip) if (binding := self._by_address.get(address))}
        if not found:
            return self.bind(self.pool.complete(eip), tenant)
        bound = next(iter(found.values()))
        return bound if len(found) == 1 and bound.eip.agrees(eip) else None

    def reserve(self, address: IPAddress) -> None:
        """Have nobody get it; without effect where it is bound, or lies outside of the ranges."""
        eip = Eip(ipv4=address) if isinstance(address, IPv4Address) else Eip(ipv6=address)
        if address not in self.reserved and address not in self._by_address and self.pool.trim(eip) is not None:
            self.pool.take(eip)
            self.reserved.add(address)

    def bind(self, eip: Eip, tenant: str) -> Binding:
        """Make the binding of an EIP that is not in use."""
        binding = Binding(eip, tenant)
        self.pool.take(eip)
        self.bindings.append(binding)
        for address in _addresses(eip):
            self._by_address[address] = binding
        return binding

    def join(self, binding: Binding, policy: PolicyRef) -> None:
        """One more policy uses it."""
        binding.policies.append(policy)
        if binding.assigned and len(binding.policies) >= self._limit:
            self._unfilled[binding.node, binding.tenant].pop(id(binding), None)

    def assign(self, binding: Binding, node: NodeName | None) -> None:
        """Say, once, where it is."""
        binding.node, binding.assigned = node, True
        self._on.setdefault((node, binding.tenant), []).append(binding)
        unfilled = self._unfilled.setdefault((node, binding.tenant), {})
        if len(binding.policies) < self._limit:
            unfilled[id(binding)] = binding

    def on(self, node: NodeName | None, tenant: str) -> list[Binding]:
        """What the tenant has there."""
        return self._on.get((node, tenant), [])

    def unfilled(self, node: NodeName | None, tenant: str) -> Mapping[int, Binding]:
        """What the tenant has there with fewer policies than the address limit; the earliest first."""
        return self._unfilled.get((node, tenant), {})

    def partners(self, eip: Eip) -> str:
        """What the addresses of `eip` are bound to, for a message."""
        bound = {binding.eip for address in _addresses(eip) if (binding := self._by_address.get(address))}
        return ", ".join(sorted(f"bound are {one}" for one in bound))


def _addresses(eip: Eip) -> list[IPAddress]:
    return [address for address in (eip.ipv4, eip.ipv6) if address is not None]
