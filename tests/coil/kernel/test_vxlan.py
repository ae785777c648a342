from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, MacAddress, Neighbour
from coil.kernel.vxlan import (
    ForwardingEntry,
    OverlayPeer,
    PeerTable,
    Vxlan,
    VxlanChange,
    VxlanState,
    diff_peers,
    diff_vxlan,
    plan_peers,
    vxlan_mtu,
)

NAME = LinkName("egress.vxlan")


def wanted(local: str = "10.0.0.1", *, vni: int = 100, port: int = 7789) -> Vxlan:
    return Vxlan(
        name=NAME,
        vni=vni,
        port=port,
        mac=MacAddress("0a:00:00:00:00:01"),
        mtu=1450,
        local=ip_address(local),
        parent=LinkName("eth0"),
    )


THERE = VxlanState(vni=100, port=7789, local=IPv4Address("10.0.0.1"), learning=False, plain=True)


@pytest.mark.parametrize(
    ("there", "change"),
    [
        (THERE, VxlanChange.NONE),
        (replace(THERE, learning=True), VxlanChange.IN_PLACE),
        (replace(THERE, local=IPv4Address("10.0.0.2")), VxlanChange.IN_PLACE),
        (replace(THERE, local=IPv6Address("fd00::1")), VxlanChange.RECREATE),
        (replace(THERE, local=None), VxlanChange.RECREATE),
        (replace(THERE, vni=101), VxlanChange.RECREATE),
        (replace(THERE, port=4789), VxlanChange.RECREATE),
        (replace(THERE, plain=False), VxlanChange.RECREATE),
    ],
)
def test_a_link_is_made_anew_only_where_the_kernel_takes_no_change(there: VxlanState, change: VxlanChange) -> None:
    assert diff_vxlan(there, wanted()) is change


def test_what_fits_inside() -> None:
    assert (vxlan_mtu(1500, Family.IPV4), vxlan_mtu(9000, Family.IPV6)) == (1450, 8930)


@pytest.mark.parametrize(("vni", "port"), [(-1, 7789), (1 << 24, 7789), (100, 0), (100, 65536)])
def test_what_cannot_be_a_tunnel(vni: int, port: int) -> None:
    with pytest.raises(ValueError, match=r"24 bits|no such port"):
        wanted(vni=vni, port=port)


def peer(number: int, *, underlay: int | None = None) -> OverlayPeer:
    return OverlayPeer(
        mac=MacAddress(f"0a:00:00:00:00:{number:02x}"),
        tunnel=(IPv4Address("172.31.0.0") + number, IPv6Address("fd11::") + number),
        underlay=IPv4Address("10.0.0.0") + (number if underlay is None else underlay),
    )


def test_what_a_link_has_to_know() -> None:
    assert plan_peers(NAME, [peer(5), peer(5)]) == PeerTable(
        entries=frozenset({ForwardingEntry(NAME, MacAddress("0a:00:00:00:00:05"), IPv4Address("10.0.0.5"))}),
        neighbours=frozenset(
            Neighbour(NAME, address, MacAddress("0a:00:00:00:00:05"))
            for address in (IPv4Address("172.31.0.5"), IPv6Address("fd11::5"))
        ),
    )


def test_two_peers_of_one_address_are_told_not_chosen_between() -> None:
    with pytest.raises(ValueError, match=r"hardware address 0a:00:00:00:00:05: 10\.0\.0\.5, 10\.0\.0\.6"):
        plan_peers(NAME, [peer(5), peer(5, underlay=6)])
    with pytest.raises(ValueError, match=r"tunnel address 172\.31\.0\.5: 0a:00:00:00:00:05, 0a:00:00:00:00:06"):
        plan_peers(NAME, [peer(5), replace(peer(6), tunnel=peer(5).tunnel)])


macs = st.integers(0, 3).map(lambda number: MacAddress(f"0a:00:00:00:00:{number:02x}"))
tunnel_addresses: st.SearchStrategy[IPAddress] = st.one_of(
    st.integers(0, 3).map(lambda number: IPv4Address("172.31.0.0") + number),
    st.integers(0, 3).map(lambda number: IPv6Address("fd11::") + number),
)
remotes: st.SearchStrategy[IPAddress] = st.integers(0, 3).map(lambda number: IPv4Address("10.0.0.0") + number)
neighbours = st.builds(Neighbour, st.just(NAME), tunnel_addresses, macs)
entries = st.builds(ForwardingEntry, st.just(NAME), macs, remotes)
plans = st.builds(
    PeerTable,
    entries=st.lists(entries, unique_by=lambda entry: entry.mac).map(frozenset),
    neighbours=st.lists(neighbours, unique_by=lambda neighbour: neighbour.address).map(frozenset),
)
# The kernel holds several remotes for a hardware address where somebody appended them.
tables = st.builds(
    PeerTable,
    entries=st.frozensets(entries),
    neighbours=st.lists(neighbours, unique_by=lambda neighbour: neighbour.address).map(frozenset),
)


@given(tables, plans)
def test_the_changes_turn_one_table_into_the_other(actual: PeerTable, plan: PeerTable) -> None:
    changes = diff_peers(actual, plan)
    held = set(actual.entries) - set(changes.entry_deletes)
    assert len(held) == len(actual.entries) - len(changes.entry_deletes), "only what is there is deleted"
    for entry in changes.entry_puts:
        same = [other for other in held if other.mac == entry.mac]
        assert len(same) <= 1, "the kernel would replace only the first"
        held = (held - set(same)) | {entry}
    assert held == plan.entries
    known = {each.address: each for each in actual.neighbours if each not in changes.neighbour_deletes}
    known |= {each.address: each for each in changes.neighbour_puts}
    assert set(known.values()) == plan.neighbours
    assert not diff_peers(plan, plan)


@given(plans, plans)
def test_a_peer_that_moves_is_never_unknown(before: PeerTable, after: PeerTable) -> None:
    changes = diff_peers(before, after)
    stay = {entry.mac for entry in before.entries} & {entry.mac for entry in after.entries}
    assert stay.isdisjoint(entry.mac for entry in changes.entry_deletes)
    addresses = {each.address for each in before.neighbours} & {each.address for each in after.neighbours}
    assert addresses.isdisjoint(each.address for each in changes.neighbour_deletes)


def test_what_a_person_reads() -> None:
    assert str(wanted()) == "VXLAN egress.vxlan (VNI 100, port 7789) from 10.0.0.1"
    entry = ForwardingEntry(NAME, MacAddress("0a:00:00:00:00:05"), IPv4Address("10.0.0.5"))
    assert str(entry) == "forwarding entry 0a:00:00:00:00:05 to 10.0.0.5 on egress.vxlan"
