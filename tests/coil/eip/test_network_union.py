"""Networks that no other one contains."""

from ipaddress import IPv6Network, ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from coil.eip.network_union import NetworkUnion
from coil.kernel.family import Family, IPNetwork

NETWORKS = st.builds(
    lambda number, length: ip_network((number << 24, length), strict=False), st.integers(0, 15), st.integers(0, 32)
)


def outermost(networks: set[IPNetwork]) -> set[str]:
    """By the letter."""
    kept = {one for one in networks if not any(one != other and one.subnet_of(other) for other in networks)}  # type: ignore[arg-type]
    return {str(one.network_address) if one.prefixlen == one.max_prefixlen else str(one) for one in kept}


@given(st.lists(NETWORKS, max_size=30))
def test_what_goes_and_comes(networks: list[IPNetwork]) -> None:
    """A network comes, or goes if it is there."""
    union, there, words = NetworkUnion(Family.IPV4), set[IPNetwork](), set[str]()
    for network in networks:
        gone, come = union.remove(network) if network in there else union.add(network)
        there ^= {network}
        assert words >= set(gone)
        words -= set(gone)
        assert not words & set(come)
        words |= set(come)
        assert words == outermost(there)


def test_of_ipv6() -> None:
    union = NetworkUnion(Family.IPV6)
    assert union.add(IPv6Network("2001:db8::/32")) == ([], ["2001:db8::/32"])
    assert union.add(IPv6Network("2001:db8::1/128")) == ([], [])
    assert union.add(IPv6Network("::/0")) == (["2001:db8::/32"], ["::/0"])
    assert union.remove(IPv6Network("2001:db8::/32")) == ([], [])
    assert union.remove(IPv6Network("::/0")) == (["::/0"], [str(ip_address("2001:db8::1"))])
