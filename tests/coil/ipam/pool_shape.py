"""Pools to be drawn by hypothesis: valid ones anywhere in the private space, of any size, and ways to change them."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from hypothesis import strategies as st

from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.meta import ObjectMeta
from coil.crd.names import PoolName

NAME = PoolName("pool")

FAMILIES = ((True, False), (False, True), (True, True))
IPV4_BITS, IPV6_BITS = 32, 128
IPV4_SPACE, IPV6_SPACE = IPv4Network("10.0.0.0/8"), IPv6Network("fd00::/8")
IPV4_WIDTH, IPV6_WIDTH = 24, 120
"""Host bits of the spaces that networks are drawn from."""
SMALL = 4
"""Bits by which a subnet of a small pool may exceed a block, so that its blocks can be counted one by one."""
MOST_BITS = 60
"""Of the number of blocks in one subnet: five of them are fewer than an index can number."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry lies: which of the possible networks of its size, counted through the space."""

    host_bits: int
    ipv4: int | None
    ipv6: int | None

    def subnet(self) -> SubnetSet:
        ipv4 = None if self.ipv4 is None else self._network(IPV4_SPACE, self.ipv4, IPV4_BITS)
        ipv6 = None if self.ipv6 is None else self._network(IPV6_SPACE, self.ipv6, IPV6_BITS)
        return SubnetSet(ipv4=ipv4, ipv6=ipv6)

    def _network(self, space: IPv4Network | IPv6Network, place: int, length: int) -> str:
        return f"{space.network_address + (place << self.host_bits)}/{length - self.host_bits}"

    def meets(self, other: "Place") -> bool:
        """Whether they share an address: of two aligned networks one then holds the other."""
        bits = max(self.host_bits, other.host_bits)
        pairs = ((self.ipv4, other.ipv4), (self.ipv6, other.ipv6))
        return any(
            one is not None and two is not None and one >> (bits - self.host_bits) == two >> (bits - other.host_bits)
            for one, two in pairs
        )


def make_pool(*subnets: SubnetSet, bits: int) -> AddressPool:
    return AddressPool(metadata=ObjectMeta(name=NAME), spec=AddressPoolSpec(block_size_bits=bits, subnets=subnets))


@st.composite
def pools(draw: st.DrawFn, *, most_bits: int = SMALL) -> AddressPool:
    """Valid pools of up to five entries, each of up to 2^`most_bits` blocks; blocks of any size."""
    ipv4, ipv6 = draw(st.sampled_from(FAMILIES))
    widest = IPV4_WIDTH if ipv4 else IPV6_WIDTH
    bits = draw(st.integers(0, widest))
    sizes = draw(st.lists(st.integers(bits, min(bits + most_bits, widest)), min_size=1, max_size=5))
    places: list[Place] = []
    for host_bits in sizes:
        place = draw(_places(host_bits, ipv4=ipv4, ipv6=ipv6))
        if not any(place.meets(other) for other in places):
            places.append(place)
    return make_pool(*(place.subnet() for place in places), bits=bits)


def _places(host_bits: int, *, ipv4: bool, ipv6: bool) -> st.SearchStrategy[Place]:
    def numbers(width: int) -> st.SearchStrategy[int]:
        return st.integers(0, (1 << (width - host_bits)) - 1)

    return st.builds(
        Place,
        st.just(host_bits),
        numbers(IPV4_WIDTH) if ipv4 else st.none(),
        numbers(IPV6_WIDTH) if ipv6 else st.none(),
    )


@st.composite
def changes(draw: st.DrawFn, pool: AddressPool) -> AddressPool:
    """The pool as somebody might have edited it: in allowed ways, in forbidden ones, or both."""
    bits, subnets = pool.spec.block_size_bits, list(pool.spec.subnets)
    others = [*subnets, *draw(pools()).spec.subnets]
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(0, len(subnets)))
        match draw(st.sampled_from(["append", "append", "insert", "replace", "remove", "swap", "bits"])):
            case "append":
                subnets.append(draw(st.sampled_from(others)))
            case "insert":
                subnets.insert(position, draw(st.sampled_from(others)))
            case "replace" if position < len(subnets):
                subnets[position] = draw(st.sampled_from(others))
            case "remove" if position < len(subnets):
                del subnets[position]
            case "swap" if subnets:
                subnets.append(subnets.pop(min(position, len(subnets) - 1)))
            case "bits":
                bits = draw(st.integers(-1, 8))
    return replace_spec(pool, bits=bits, subnets=subnets)


def replace_spec(pool: AddressPool, *, bits: int, subnets: list[SubnetSet]) -> AddressPool:
    return AddressPool(metadata=pool.metadata, spec=AddressPoolSpec(block_size_bits=bits, subnets=tuple(subnets)))
