"""Tunnels and flow-based links, as `ip -d -j link` prints them and as packets on the wire show them."""

from functools import partial
from ipaddress import IPv4Address

import pytest

from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.kernel.tunnel import CatchAll, Tunnel, catch_all, diff_tunnels, tunnel_name
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.tunnel import (
    change_tunnel,
    create_tunnel,
    delete_tunnels,
    ensure_catch_alls,
    find_tunnels,
    open_tunnel,
    read_tunnels,
    rename_fallbacks,
)
from integration.fou.conversation import Capture, Conversation
from integration.fou.end import MTU, PORT, End
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

families = pytest.mark.parametrize("family", list(Family))


@families
def test_a_tunnel_is_what_was_asked_for_and_down(ends: tuple[End, End], family: Family) -> None:
    one, other = ends
    tunnel = one.tunnel(other, family)
    index = one.call(partial(create_tunnel, tunnel))
    link = one.link(tunnel.name)
    data = link["linkinfo"]["info_data"]
    assert (link["ifindex"], link["mtu"], "UP" in link["flags"]) == (index, MTU[family], False)
    assert link["linkinfo"]["info_kind"] == ("ipip" if family is Family.IPV4 else "ip6tnl")
    assert data["proto"] == ("ipip" if family is Family.IPV4 else "ip6ip6")
    assert (data["local"], data["remote"]) == (str(one.outer[family]), str(other.outer[family]))
    assert data["ttl"] == 225
    assert data["encap"] == {
        "type": "fou",
        "sport": PORT,
        "dport": PORT,
        "csum": False,
        "csum6": False,
        "remcsum": False,
    }
    if family is Family.IPV6:
        assert data["ip6_tnl_f_ign_encap_limit"]
    table = one.call(read_tunnels)
    assert (table.tunnels, table.catch_alls, table.links[tunnel.name].index) == ((tunnel,), (), index)
    found = one.call(lambda connection: find_tunnels([tunnel.name, LinkName("fou4_00000000")], connection))
    assert (found.tunnels, [*found.links]) == ((tunnel,), [tunnel.name])


@families
def test_what_is_there_is_never_taken_over(ends: tuple[End, End], family: Family) -> None:
    one, other = ends
    tunnel = one.tunnel(other, family)
    one.netns.ip("link", "add", tunnel.name, "type", "veth")
    with pytest.raises(KernelError, match=f"create .* {tunnel.name}: File exists"):
        one.call(partial(create_tunnel, tunnel))
    with pytest.raises(KernelError):
        one.call(partial(change_tunnel, tunnel))
    assert one.link(tunnel.name)["linkinfo"]["info_kind"] == "veth"
    assert one.call(read_tunnels).tunnels == ()


@families
def test_packets_go_through_both_ways_as_the_tunnel_says(ends: tuple[End, End], family: Family) -> None:
    one, other = ends
    for end, peer in (ends, ends[::-1]):
        end.receive()
        end.dig(peer, family)
    with Capture(other, family) as capture, Conversation(one, other, family) as conversation:
        datagram = capture.next()
        _go_on(conversation, rounds=5)
    assert (datagram.source_port, datagram.port, datagram.ttl) == (PORT, PORT, 225)


@pytest.mark.parametrize("family", [pytest.param(Family.IPV4, marks=pytest.mark.slow), Family.IPV6])
def test_source_port_and_mtu_change_in_place_while_packets_go_through(ends: tuple[End, End], family: Family) -> None:
    one, other = ends
    for end, peer in (ends, ends[::-1]):
        end.receive()
        end.dig(peer, family)
    name = tunnel_name(other.outer[family])
    before = one.link(name)
    routes = one.netns.read(f"-{4 if family is Family.IPV4 else 6}", "route", "show", "dev", name)
    settings = ((0, 0), (PORT, 1400), (0, 1300), (PORT, 0)) * 3
    # What is sent in the very instant of a change may be lost (see change_tunnel); a link that goes down loses all.
    with Conversation(one, other, family, may_lose=len(settings)) as conversation:
        for source_port, mtu in settings:
            tunnel = one.tunnel(other, family, source_port=source_port, mtu=mtu)
            one.call(partial(change_tunnel, tunnel))
            after = one.link(name)
            assert after["linkinfo"]["info_data"]["encap"].get("sport", 0) in (source_port, "auto")
            assert after["mtu"] == tunnel.mtu
            assert one.call(read_tunnels).tunnels == (tunnel,)
            with Capture(other, family) as capture:
                _go_on(conversation, rounds=2)
                assert (capture.next().source_port == PORT) == (source_port == PORT)
            assert (after["ifindex"], after["flags"]) == (before["ifindex"], before["flags"])
    assert one.netns.read(f"-{4 if family is Family.IPV4 else 6}", "route", "show", "dev", name) == routes
    assert one.link(name)["linkinfo"] == before["linkinfo"]


@families
def test_an_automatic_source_port_is_one_per_flow(ends: tuple[End, End], family: Family) -> None:
    one, other = ends
    for end, peer in (ends, ends[::-1]):
        end.receive()
        end.dig(peer, family)
    one.call(partial(change_tunnel, one.tunnel(other, family, source_port=0)))
    seen: set[int] = set()
    for _ in range(4):
        with Capture(other, family) as capture, Conversation(one, other, family) as conversation:
            _go_on(conversation, rounds=3)
            flow = {capture.next().source_port for _ in range(3)}
        assert len(flow) == 1
        seen |= flow
    assert len(seen) > 1


@families
def test_everything_about_a_tunnel_can_be_changed_where_it_is(ends: tuple[End, End], family: Family) -> None:
    one, other = ends
    index = one.call(partial(create_tunnel, one.tunnel(other, family)))
    there = one.tunnel(other, family)
    wanted = Tunnel(
        name=there.name, local=there.remote, remote=there.local, port=5556, source_port=5557, mtu=1280, ttl=64
    )
    changes = diff_tunnels(one.call(read_tunnels).tunnels, [wanted])
    assert (changes.creates, changes.changes, changes.deletes) == ((), (wanted,), ())
    one.call(partial(change_tunnel, wanted))
    link = one.link(there.name)
    data = link["linkinfo"]["info_data"]
    assert (link["ifindex"], link["mtu"], data["ttl"]) == (index, 1280, 64)
    assert (data["local"], data["remote"]) == (str(wanted.local), str(wanted.remote))
    assert (data["encap"]["sport"], data["encap"]["dport"]) == (5557, 5556)
    assert one.call(read_tunnels).tunnels == (wanted,)


@families
def test_a_flow_based_link_receives_from_peers_without_a_tunnel(ends: tuple[End, End], family: Family) -> None:
    one, other = ends
    one.dig(other, family)
    other.receive()
    other.netns.ip("route", "replace", *_back(one, family))
    with Capture(other, family) as capture, Conversation(one, other, family) as conversation:
        assert capture.next().port == PORT
        _go_on(conversation, rounds=3)


def _go_on(conversation: Conversation, *, rounds: int) -> None:
    """Wait until the conversation has come further."""
    so_far = conversation.count
    wait_until(lambda: conversation.count > so_far + rounds, what="more of the conversation")


def _back(one: End, family: Family) -> tuple[str, ...]:
    """To the inner address of `one` without a tunnel."""
    return str(one.inner[family]), "via", str(one.outer[family]), "onlink", "dev", "eth0"


def test_flow_based_links_are_made_once_and_brought_up_again(ends: tuple[End, End]) -> None:
    end, _ = ends
    wanted = [catch_all(family) for family in Family]
    ensure = partial(end.call, partial(ensure_catch_alls, wanted))
    assert ensure()
    for name, kind in (("coil_ipip4", "ipip"), ("coil_ipip6", "ip6tnl")):
        link = end.link(name)
        assert (link["linkinfo"]["info_kind"], link["linkinfo"]["info_data"]["external"]) == (kind, True)
        assert "UP" in link["flags"]
    [found] = end.netns.read("link", "show", "fou-dummy")
    assert found["ifname"] == "coil_ipip4", "by which Coil in Go knows that the ports are there"
    assert not ensure()
    assert end.call(read_tunnels).catch_alls == tuple(wanted)
    end.netns.ip("link", "set", "coil_ipip6", "down")
    assert ensure()
    assert "UP" in end.link("coil_ipip6")["flags"]


def test_the_link_of_coil_in_go_keeps_its_name(ends: tuple[End, End]) -> None:
    end, _ = ends
    end.netns.ip("link", "add", "fou-dummy", "type", "dummy")
    assert end.call(partial(ensure_catch_alls, [catch_all(family) for family in Family]))
    for name in ("fou-dummy", "coil_ipip4", "coil_ipip6"):
        assert "altnames" not in end.link(name)


def test_a_namespace_has_room_for_one_flow_based_link_of_a_family(ends: tuple[End, End]) -> None:
    end, _ = ends
    end.netns.ip("link", "add", "other4", "type", "ipip", "external")
    end.netns.ip("link", "add", "coil_ipip6", "type", "veth")
    with pytest.raises(NetlinkError, match="coil_ipip4: File exists"):
        end.call(partial(ensure_catch_alls, [catch_all(Family.IPV4)]))
    with pytest.raises(NetlinkError, match="there is a link coil_ipip6 already, and it is no flow-based ip6tnl link"):
        end.call(partial(ensure_catch_alls, [catch_all(Family.IPV6)]))
    assert end.call(read_tunnels).catch_alls == (CatchAll(name=LinkName("other4"), family=Family.IPV4),)


def test_the_fallback_devices_lose_their_names(ends: tuple[End, End]) -> None:
    end, _ = ends
    assert {"tunl0", "ip6tnl0"} <= {link["ifname"] for link in end.netns.read("link")}
    assert end.call(rename_fallbacks)
    names = {link["ifname"] for link in end.netns.read("link")}
    assert {"coil_tunl", "coil_ip6tnl"} <= names
    assert not {"tunl0", "ip6tnl0"} & names
    assert not end.call(rename_fallbacks)
    assert end.call(read_tunnels).tunnels == ()


def test_a_fallback_device_in_use_keeps_its_name(ends: tuple[End, End]) -> None:
    end, _ = ends
    end.netns.ip("link", "set", "tunl0", "up")
    assert end.call(rename_fallbacks)
    assert {"tunl0", "coil_ip6tnl"} <= {link["ifname"] for link in end.netns.read("link")}
    assert not end.call(rename_fallbacks)


def test_many_tunnels_are_made_and_deleted_with_their_routes(ends: tuple[End, End]) -> None:
    one, other = ends
    peers = [IPv4Address("10.64.1.0") + number for number in range(100)]
    tunnels = [
        Tunnel(name=tunnel_name(peer), local=one.outer[Family.IPV4], remote=peer, port=PORT, source_port=PORT, mtu=1472)
        for peer in peers
    ]
    kept = one.dig(other, Family.IPV4)
    indices = one.call(lambda connection: [create_tunnel(tunnel, connection) for tunnel in tunnels])
    for index in indices:
        one.call(partial(open_tunnel, index, []))
    links = {link["ifname"]: link for link in one.netns.read("link")}
    assert [links[tunnel.name]["ifindex"] for tunnel in tunnels] == indices
    assert all("UP" in links[tunnel.name]["flags"] for tunnel in tunnels)
    one.netns.call(lambda: delete_tunnels([tunnel.name for tunnel in tunnels]))
    one.netns.call(lambda: delete_tunnels([tunnel.name for tunnel in tunnels]))
    assert one.call(read_tunnels).tunnels == (one.tunnel(other, Family.IPV4),)
    [route] = one.netns.read("route", "show", "dev", tunnel_name(other.outer[Family.IPV4]))
    assert route["dst"] == str(other.inner[Family.IPV4])
    assert one.link(tunnel_name(other.outer[Family.IPV4]))["ifindex"] == kept
