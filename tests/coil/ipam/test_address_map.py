"""Who has an address of a planned block: against a judge that compares all with all, after any history of blocks."""

from ipaddress import IPv4Network, IPv6Network, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.address_block import AddressBlock
from coil.crd.meta import ObjectMeta
from coil.crd.names import BlockName, PoolName
from coil.ipam.address_map import AddressMap
from coil.ipam.layout import PlannedBlock

NAMES = st.sampled_from([f"block-{number}" for number in range(6)])


def ipv4_networks() -> st.SearchStrategy[IPv4Network]:
    return st.integers(0, 4).flatmap(
        lambda bits: st.integers(0, 31 >> bits).map(lambda place: IPv4Network((place << bits, 32 - bits)))
    )


def ipv6_networks() -> st.SearchStrategy[IPv6Network]:
    return ipv4_networks().map(lambda network: IPv6Network((int(network.network_address), network.prefixlen + 96)))


def block(name: str, ipv4: object = None, ipv6: object = None) -> AddressBlock:
    return AddressBlock(
        metadata=ObjectMeta(name=name),
        index=0,
        ipv4=None if ipv4 is None else str(ipv4),
        ipv6=None if ipv6 is None else str(ipv6),
    )


def planned(ipv4: IPv4Network | None, ipv6: IPv6Network | None) -> PlannedBlock:
    return PlannedBlock(PoolName("pool"), 0, ipv4, ipv6)


BLOCKS = st.builds(block, NAMES, st.none() | ipv4_networks(), st.none() | ipv6_networks())
PLANS = st.builds(planned, st.none() | ipv4_networks(), st.none() | ipv6_networks())


def share(one: AddressBlock, plan: PlannedBlock) -> bool:
    pairs = ((one.ipv4, plan.ipv4), (one.ipv6, plan.ipv6))
    return any(text is not None and net is not None and ip_network(text).overlaps(net) for text, net in pairs)


@given(st.lists(BLOCKS | NAMES, max_size=12), PLANS, st.booleans())
def test_the_holder_is_a_block_that_shares_an_address(
    history: list[AddressBlock | str], plan: PlannedBlock, asked_often: bool
) -> None:
    addresses = AddressMap()
    there: dict[str, AddressBlock] = {}
    for event in history:
        if isinstance(event, AddressBlock):
            addresses.observe(there.get(event.name), event)
            there[event.name] = event
        elif (gone := there.pop(event, None)) is not None:
            addresses.observe(gone, None)
        if asked_often:
            addresses.holder(plan)
    holders = {name for name, item in there.items() if share(item, plan)}
    holder = addresses.holder(plan)
    assert holder in holders if holders else holder is None


def test_the_many_blocks_of_a_start_and_those_that_follow() -> None:
    addresses = AddressMap()
    for number in reversed(range(1000)):
        addresses.observe(None, block(f"block-{number}", IPv4Network((number << 5, 27))))
    addresses.observe(None, block("late", IPv4Network((2000 << 5, 27))))
    assert addresses.holder(planned(IPv4Network((999 << 5, 27)), None)) == "block-999"
    assert addresses.holder(planned(IPv4Network((2000 << 5 | 31, 32)), None)) == "late"
    assert addresses.holder(planned(IPv4Network((1000 << 5, 27)), None)) is None


@pytest.mark.parametrize("nonsense", ["", "x", "10.0.0.0", "10.0.0.0/x", "10.0.0.0/99", "10.0.0.0/-1", "fd00::/64"])
def test_what_is_no_network_is_held_by_nobody(nonsense: str) -> None:
    addresses = AddressMap()
    addresses.observe(None, block("odd", nonsense))
    assert addresses.holder(planned(IPv4Network("0.0.0.0/0"), None)) is None
    addresses.observe(block("odd", nonsense), None)


def test_host_bits_are_no_hiding_place() -> None:
    addresses = AddressMap()
    addresses.observe(None, block("edited", "10.0.0.9/27"))
    assert addresses.holder(planned(IPv4Network("10.0.0.0/30"), None)) == BlockName("edited")
