"""The rules of pools against a naive judge that counts addresses one by one, in a universe of 64 of each family."""

from ipaddress import IPv4Network, IPv6Network

from hypothesis import given
from hypothesis import strategies as st

from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.meta import ObjectMeta
from coil.crd.pool_validation import validate_disjoint, validate_pool

SIZE_BITS = 6
IPV4_PREFIX, IPV6_PREFIX = 32 - SIZE_BITS, 128 - SIZE_BITS

ADDRESSES = st.integers(0, 2**SIZE_BITS - 1)
IPV4 = st.builds(lambda last, prefix: f"10.0.0.{last}/{prefix}", ADDRESSES, st.integers(IPV4_PREFIX, 32))
IPV6 = st.builds(lambda last, prefix: f"fd00::{last:x}/{prefix}", ADDRESSES, st.integers(IPV6_PREFIX, 128))
TIDY_IPV4 = IPV4.map(lambda text: str(IPv4Network(text, strict=False)))
TIDY_IPV6 = IPV6.map(lambda text: str(IPv6Network(text, strict=False)))
NONE = st.none()
ENTRIES = st.one_of(
    st.builds(SubnetSet, ipv4=TIDY_IPV4, ipv6=NONE),
    st.builds(SubnetSet, ipv4=NONE, ipv6=TIDY_IPV6),
    st.builds(SubnetSet, ipv4=TIDY_IPV4, ipv6=TIDY_IPV6),
    st.builds(SubnetSet, ipv4=NONE | IPV4, ipv6=NONE | IPV6),
)


def pools(name: str) -> st.SearchStrategy[AddressPool]:
    entries = st.lists(ENTRIES, max_size=3).map(tuple)
    spec = st.builds(AddressPoolSpec, block_size_bits=st.integers(-1, SIZE_BITS + 1), subnets=entries)
    return st.builds(AddressPool, metadata=st.just(ObjectMeta(name=name)), spec=spec)


def addresses(text: str | None, kind: type[IPv4Network] | type[IPv6Network]) -> list[object]:
    """Every address of the network."""
    return [] if text is None else list(kind(text, strict=False))


def is_sound(pool: AddressPool) -> bool:
    """What the design asks of a pool, said once more, as slowly as possible."""
    block = 2.0**pool.spec.block_size_bits
    seen: list[object] = []
    mixes = set()
    for entry in pool.spec.subnets:
        ipv4, ipv6 = addresses(entry.ipv4, IPv4Network), addresses(entry.ipv6, IPv6Network)
        mixes.add((bool(ipv4), bool(ipv6)))
        sizes = {len(found) for found in (ipv4, ipv6) if found}
        if len(sizes) != 1 or sizes.pop() < block:
            return False
        seen += ipv4 + ipv6
    return block >= 1 and len(mixes) == 1 and len(set(seen)) == len(seen)


@given(pools("pool"))
def test_a_pool_is_valid_if_and_only_if_it_is_sound(pool: AddressPool) -> None:
    assert (validate_pool(pool) == []) == is_sound(pool)


@given(pools("one"), pools("two"))
def test_two_pools_are_disjoint_if_and_only_if_they_share_no_address(one: AddressPool, two: AddressPool) -> None:
    if not (is_sound(one) and is_sound(two)):
        return
    contents = [
        {
            address
            for entry in pool.spec.subnets
            for found in (addresses(entry.ipv4, IPv4Network), addresses(entry.ipv6, IPv6Network))
            for address in found
        }
        for pool in (one, two)
    ]
    assert (validate_disjoint(one, [two]) == []) == (not contents[0] & contents[1])
    assert (validate_disjoint(two, [one]) == []) == (validate_disjoint(one, [two]) == [])
