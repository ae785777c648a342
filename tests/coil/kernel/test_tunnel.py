from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, parse_link_name
from coil.kernel.tunnel import CatchAll, FouPort, Tunnel, TunnelChanges, catch_all, diff_tunnels, tunnel_name

LOCAL: dict[int, IPAddress] = {4: IPv4Address("10.64.0.1"), 6: IPv6Address("fd64::1")}
peers = st.one_of(
    st.integers(0, 5).map(lambda number: IPv4Address("10.64.1.0") + number),
    st.integers(0, 5).map(lambda number: IPv6Address("fd64:1::") + number),
)


def tunnel_to(peer: IPAddress, *, source_port: int = 5555, mtu: int = 1400, ttl: int = 225) -> Tunnel:
    return Tunnel(
        name=tunnel_name(peer),
        local=LOCAL[peer.version],
        remote=peer,
        port=5555,
        source_port=source_port,
        mtu=mtu,
        ttl=ttl,
    )


tunnels = st.builds(
    tunnel_to, peers, source_port=st.sampled_from((0, 5555)), mtu=st.sampled_from((1400, 1472)), ttl=st.just(225)
)
sets = st.lists(tunnels, unique_by=lambda tunnel: tunnel.name)


@given(sets, sets)
def test_the_changes_turn_one_set_into_the_other(actual: list[Tunnel], wanted: list[Tunnel]) -> None:
    changes = diff_tunnels(actual, wanted)
    links = {tunnel.name: tunnel for tunnel in actual}
    for tunnel in changes.creates:
        assert tunnel.name not in links, "the kernel would refuse it"
        links[tunnel.name] = tunnel
    for tunnel in changes.changes:
        assert links[tunnel.name] != tunnel, "nothing is touched that stays as it is"
        links[tunnel.name] = tunnel
    for tunnel in changes.deletes:
        del links[tunnel.name]
    assert links == {tunnel.name: tunnel for tunnel in wanted}
    assert not diff_tunnels(list(links.values()), wanted * 2)


@given(sets, sets)
def test_neither_order_nor_repetition_matters(actual: list[Tunnel], wanted: list[Tunnel]) -> None:
    assert diff_tunnels(actual[::-1] * 2, wanted[::-1] * 2) == diff_tunnels(actual, wanted)


def test_a_tunnel_of_a_wanted_name_is_changed_whatever_differs() -> None:
    there, wanted = (tunnel_to(IPv4Address("10.64.1.1"), ttl=ttl) for ttl in (64, 225))
    assert diff_tunnels([there], [wanted]) == TunnelChanges(changes=(wanted,))


@pytest.mark.parametrize(("mtu", "changed"), [(1392, False), (1400, True), (1391, True)])
def test_the_encapsulation_limit_of_coil_v2_stays_with_the_room_it_takes(mtu: int, changed: bool) -> None:
    wanted = tunnel_to(IPv6Address("fd64:1::1"), mtu=1400)
    there = replace(wanted, encap_limit=True, mtu=mtu)
    assert diff_tunnels([there], [wanted]) == TunnelChanges(changes=(wanted,) if changed else ())


def test_two_peers_of_one_name_are_told_not_chosen_between() -> None:
    one, other = (
        Tunnel(name=LinkName("fou6_00000000"), local=LOCAL[6], remote=remote, port=5555, source_port=0, mtu=1452)
        for remote in (IPv6Address("fd64::2"), IPv6Address("fd64::3"))
    )
    with pytest.raises(ValueError, match="two tunnels want the name fou6_00000000: to fd64::2, fd64::3"):
        diff_tunnels([], [one, other])


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.64.0.5", "fou4_0a400005"),
        ("192.168.254.1", "fou4_c0a8fe01"),
        # printf '\375\2\0\0\0\0\0\0\0\0\0\0\0\0\0\5' | sha1sum
        ("fd02::5", "fou6_8591ada5"),
    ],
)
def test_the_name_follows_from_the_address(address: str, name: str) -> None:
    assert tunnel_name(ip_address(address)) == name


@given(st.ip_addresses())
def test_every_address_has_a_name_that_the_kernel_takes(address: IPAddress) -> None:
    assert parse_link_name(tunnel_name(address)) == tunnel_name(address)


def test_the_kinds_and_protocols_of_the_families() -> None:
    assert [catch_all(family) for family in Family] == [
        CatchAll(name=LinkName("coil_ipip4"), family=Family.IPV4),
        CatchAll(name=LinkName("coil_ipip6"), family=Family.IPV6),
    ]
    assert [catch_all(family).kind for family in Family] == ["ipip", "ip6tnl"]
    assert [FouPort(family, 5555).protocol for family in Family] == [4, 41]
    assert (tunnel_to(LOCAL[4]).kind, tunnel_to(LOCAL[4]).family) == ("ipip", Family.IPV4)
    assert (tunnel_to(LOCAL[6]).kind, tunnel_to(LOCAL[6]).family) == ("ip6tnl", Family.IPV6)


@pytest.mark.parametrize(
    ("local", "remote", "port", "source_port"),
    [("10.0.0.1", "fd00::1", 1, 1), ("10.0.0.1", "10.0.0.2", 0, 1), ("10.0.0.1", "10.0.0.2", 1, 65536)],
)
def test_what_cannot_be_a_tunnel(local: str, remote: str, port: int, source_port: int) -> None:
    with pytest.raises(ValueError, match="a tunnel from"):
        Tunnel(
            name=LinkName("t"),
            local=ip_address(local),
            remote=ip_address(remote),
            port=port,
            source_port=source_port,
            mtu=1400,
        )


def test_what_a_person_reads() -> None:
    assert str(tunnel_to(IPv4Address("10.64.0.2"), source_port=0)) == (
        "tunnel fou4_0a400002 from 10.64.0.1 port 0 to 10.64.0.2 port 5555"
    )
    assert str(FouPort(Family.IPV6, 5555)) == "FOU port 5555 (IPV6)"
    assert str(catch_all(Family.IPV4)) == "flow-based ipip link coil_ipip4"
