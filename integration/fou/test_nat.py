"""Both ends of egress NAT as `ip` and `nft` print them: exactly what the specification says, made once, and gone
without a trace.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from coil.egress.gateway import ClientSpec, Replies, RouterSpec, SourcePort
from coil.kernel.family import Family
from coil.kernel.tunnel import tunnel_name
from coil.nat.router import RouterNetwork
from coil.netlink.error import NamespaceError, NetlinkError
from coil.netlink.host import NetnsPath
from coil.netlink.namespace import Namespace
from integration.fou.nat_world import NatWorld, ask, kernel_state, lines
from integration.fou.silence import silence
from integration.nat_stage import NatStage
from integration.netns.netns import Netns
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

CLIENT4, CLIENT6 = "fou4_0a400002", str(tunnel_name(IPv6Address("fd64::2")))
ROUTER4, ROUTER6 = "fou4_0a400003", str(tunnel_name(IPv6Address("fd64::3")))
COLLIDING = ("fd68::1:93bc", "fd68::1:9b00")
"""The SHA-1 of both begins with e68904f8."""


@pytest.fixture
async def world() -> AsyncIterator[NatWorld]:
    with NatStage() as stage:
        async with NatWorld(stage) as world:
            yield world


def tunnels(netns: Netns) -> dict[str, dict[str, Any]]:
    """The links of our kinds, by name: what matters of each."""
    found: dict[str, dict[str, Any]] = {}
    for link in netns.read("link"):
        info = link.get("linkinfo", {})
        if info.get("info_kind") in {"ipip", "ip6tnl"}:
            data = info.get("info_data", {})
            encap = data.get("encap", {})
            found[link["ifname"]] = {
                "up": "UP" in link["flags"],
                "mtu": link["mtu"],
                "external": data.get("external", False),
                "ends": (data.get("local"), data.get("remote")),
                "ttl": data.get("ttl"),
                "ports": (encap.get("sport"), encap.get("dport")),
            }
    return found


FALLBACKS = {"tunl0", "ip6tnl0", "coil_tunl", "coil_ip6tnl"}


def made(netns: Netns) -> dict[str, dict[str, Any]]:
    """Without the devices that the kernel adds."""
    return {name: tunnel for name, tunnel in tunnels(netns).items() if name not in FALLBACKS}


def fou_ports(netns: Netns) -> set[str]:
    """Those of both families, whichever is asked for."""
    return set(lines(netns, "ip", "fou", "show"))


async def test_a_client_is_what_the_specification_says(world: NatWorld) -> None:
    everything = world.gateway(destinations=(ip_network("0.0.0.0/0"), ip_network("::/0")))
    domestic = world.gateway(
        "domestic/nat",
        addresses=(ip_address("10.96.0.7"), ip_address("fd96::7")),
        destinations=(ip_network("192.168.10.0/24"), ip_network("fd55::/64")),
        source_port=SourcePort.AUTO,
    )
    changes = await world.sync(everything, domestic)
    assert changes.problems == ()
    pod = world.stage.client.netns
    domestic4, domestic6 = "fou4_0a600007", str(tunnel_name(IPv6Address("fd96::7")))
    common = {"up": True, "external": False, "ttl": 225}
    assert made(pod) == {
        ROUTER4: {**common, "mtu": 1472, "ends": ("10.64.0.2", "10.64.0.3"), "ports": (5555, 5555)},
        ROUTER6: {**common, "mtu": 1452, "ends": ("fd64::2", "fd64::3"), "ports": (5555, 5555)},
        domestic4: {**common, "mtu": 1472, "ends": ("10.64.0.2", "10.96.0.7"), "ports": (0, 5555)},
        domestic6: {**common, "mtu": 1452, "ends": ("fd64::2", "fd96::7"), "ports": (0, 5555)},
        **catch_alls(pod),
    }
    assert lines(pod, "ip", "rule") == [
        "0: from all lookup local",
        "1800: from all to 169.254.0.0/16 lookup main proto 30",
        "1900: from all lookup 117 proto 30",
        "2000: from all to 10.0.0.0/8 lookup main proto 30",
        "2001: from all to 172.16.0.0/12 lookup main proto 30",
        "2002: from all to 192.168.0.0/16 lookup main proto 30",
        "2100: from all lookup 118 proto 30",
        "32766: from all lookup main",
        "32767: from all lookup default",
    ]
    assert lines(pod, "ip", "-6", "rule") == [
        "0: from all lookup local",
        "1800: from all to fe80::/10 lookup main proto 30",
        "1900: from all lookup 117 proto 30",
        "2000: from all to fc00::/7 lookup main proto 30",
        "2100: from all lookup 118 proto 30",
        "32766: from all lookup main",
    ]
    assert lines(pod, "ip", "route", "show", "table", "117") == [f"192.168.10.0/24 dev {domestic4} proto 30"]
    assert lines(pod, "ip", "route", "show", "table", "118") == [f"default dev {ROUTER4} proto 30"]
    ipv6 = "proto 30 metric 1024 pref medium"
    assert lines(pod, "ip", "-6", "route", "show", "table", "117") == [f"fd55::/64 dev {domestic6} {ipv6}"]
    assert lines(pod, "ip", "-6", "route", "show", "table", "118") == [f"default dev {ROUTER6} {ipv6}"]
    assert fou_ports(pod) == {"port 5555 ipproto 4", "port 5555 ipproto 41 -6"}
    assert {pod.sysctl(f"net/ipv4/conf/{name}/rp_filter") for name in ("all", "default", "eth0", ROUTER4)} == {"0"}
    assert lines(pod, "nft", "list", "ruleset") == []
    assert {"coil_tunl", "coil_ip6tnl"} <= tunnels(pod).keys()
    assert not {"tunl0", "ip6tnl0"} & tunnels(pod).keys()


def catch_alls(netns: Netns) -> dict[str, dict[str, Any]]:
    """Those of the namespace, which have to be there, up and flow-based."""
    found = {name: tunnels(netns)[name] for name in ("coil_ipip4", "coil_ipip6")}
    assert all(link["up"] and link["external"] for link in found.values())
    return found


async def test_a_router_is_what_the_specification_says(world: NatWorld) -> None:
    await world.router.add_peers(tuple(world.stage.client.addresses.values()), SourcePort.FIXED)
    pod = world.stage.router.netns
    common = {"up": True, "external": False, "ttl": 225, "ports": (5555, 5555)}
    assert made(pod) == {
        CLIENT4: {**common, "mtu": 1472, "ends": ("10.64.0.3", "10.64.0.2")},
        CLIENT6: {**common, "mtu": 1452, "ends": ("fd64::3", "fd64::2")},
        **catch_alls(pod),
    }
    assert lines(pod, "ip", "rule") == [
        "0: from all lookup local",
        "2000: from all iif eth0 lookup 118 proto 30",
        "32766: from all lookup main",
        "32767: from all lookup default",
    ]
    assert lines(pod, "ip", "-6", "rule") == [
        "0: from all lookup local",
        "2000: from all iif eth0 lookup 118 proto 30",
        "32766: from all lookup main",
    ]
    assert lines(pod, "ip", "route", "show", "table", "118") == [f"10.64.0.2 dev {CLIENT4} proto 30"]
    assert lines(pod, "ip", "-6", "route", "show", "table", "118") == [
        f"fd64::2 dev {CLIENT6} proto 30 metric 1024 pref medium"
    ]
    assert fou_ports(pod) == {"port 5555 ipproto 4", "port 5555 ipproto 41 -6"}
    assert pod.sysctl("net/ipv4/ip_forward") == pod.sysctl("net/ipv6/conf/all/forwarding") == "1"
    assert {pod.sysctl(f"net/ipv4/conf/{name}/rp_filter") for name in ("all", "default", CLIENT4)} == {"0"}
    assert await world.router.peers() == {*world.stage.client.addresses.values()}


async def test_where_replies_go_is_a_rule_a_table_and_a_mark(world: NatWorld) -> None:
    await world.sync(world.gateway(), replies=Replies.WHERE_THEY_CAME_FROM)
    pod = world.stage.client.netns
    [eth0] = [link for link in pod.read("link") if link["ifname"] == "eth0"]
    index = eth0["ifindex"]
    for family in ("-4", "-6"):
        assert lines(pod, "ip", family, "rule")[1] == f"1000: from all fwmark {index:#x} lookup {1000 + index} proto 30"
    assert lines(pod, "ip", "route", "show", "table", str(1000 + index)) == [
        "default via 169.254.1.1 dev eth0 proto 30",
        "169.254.1.1 dev eth0 proto 30 scope link",
    ]
    ipv6 = lines(pod, "ip", "-6", "route", "show", "table", str(1000 + index))
    assert "default via fe80::1 dev eth0 proto 30 metric 1024 pref medium" in ipv6
    assert "table inet coil_client {" in lines(pod, "nft", "list", "ruleset")
    with silence(pod):
        assert not await world.sync(world.gateway(), replies=Replies.WHERE_THEY_CAME_FROM)
    await world.sync(world.gateway())
    assert lines(pod, "nft", "list", "ruleset") == []
    assert not any("fwmark" in line for line in lines(pod, "ip", "rule"))
    assert not await world.sync(world.gateway())


async def test_a_second_time_nothing_is_touched(world: NatWorld) -> None:
    await world.connect()
    with silence(world.stage.client.netns):
        assert not await world.sync(world.gateway())
    with silence(world.stage.router.netns):
        await world.router.set_up(RouterSpec(addresses=tuple(world.stage.router.addresses.values())))
        await world.router.add_peers(tuple(world.stage.client.addresses.values()), SourcePort.FIXED)


@pytest.mark.slow
@pytest.mark.parametrize("replies", list(Replies))
async def test_nothing_is_left_of_a_client(world: NatWorld, replies: Replies) -> None:
    pod = world.stage.client.netns
    before = kernel_state(pod)
    await world.sync(world.gateway(), replies=replies)
    assert kernel_state(pod) != before
    await world.sync()
    assert kernel_state(pod) == before
    with silence(pod):
        assert not await world.sync()


async def test_a_pod_that_never_was_a_client_is_not_touched(world: NatWorld) -> None:
    with silence(world.stage.client.netns):
        assert not await world.sync()


@pytest.mark.slow
async def test_one_family_comes_and_goes(world: NatWorld) -> None:
    pod = world.stage.client.netns
    dual, single = world.gateway(), world.gateway(destinations=(ip_network("203.0.113.0/24"),))
    await world.sync(single)
    alone = kernel_state(pod)
    await world.sync(dual)
    await world.sync(single)
    assert kernel_state(pod) == alone


async def test_the_tunnels_follow_the_uplink_and_the_source_port_in_place(world: NatWorld) -> None:
    await world.sync(world.gateway())
    pod = world.stage.client.netns
    before = {link["ifname"]: link["ifindex"] for link in pod.read("link")}
    pod.ip("link", "set", "eth0", "mtu", "1400")
    changes = await world.sync(world.gateway(source_port=SourcePort.AUTO))
    assert [line.split()[0] for line in changes.made] == ["change", "change"]
    assert (made(pod)[ROUTER4]["mtu"], made(pod)[ROUTER6]["mtu"]) == (1372, 1352)
    assert made(pod)[ROUTER4]["ports"] == (0, 5555)
    assert {link["ifname"]: link["ifindex"] for link in pod.read("link")} == before


@pytest.mark.slow
async def test_what_others_have_in_the_namespace_stays(world: NatWorld) -> None:
    pod = world.stage.client.netns
    pod.ip("rule", "add", "priority", "2050", "lookup", "77")
    pod.ip("rule", "add", "priority", "1900", "lookup", "77", "protocol", "44")
    pod.ip("route", "add", "198.18.0.0/15", "dev", "eth0", "table", "118", "proto", "44")
    before = kernel_state(pod)
    await world.sync(world.gateway())
    await world.sync()
    assert kernel_state(pod) == before


async def test_a_routers_namespace_is_never_taken_for_a_clients(world: NatWorld) -> None:
    await world.connect()
    before = kernel_state(world.stage.router.netns)
    with pytest.raises(NetlinkError, match="the namespace of a router"):
        await world.sync(world.gateway(), host=world.stage.router)
    assert not await world.sync(host=world.stage.router), "a router has no client's end to take away"
    assert kernel_state(world.stage.router.netns) == before


@pytest.mark.slow
async def test_an_open_namespace_does_as_well_as_a_path(world: NatWorld) -> None:
    with Namespace(world.stage.client.netns.path) as namespace:
        pending = world.client.sync(client_spec(world), namespace)
        await pending
    assert CLIENT4 not in made(world.stage.client.netns)
    assert ROUTER4 in made(world.stage.client.netns)


def client_spec(world: NatWorld) -> ClientSpec:
    return ClientSpec(addresses=tuple(world.stage.client.addresses.values()), gateways=(world.gateway(),))


async def test_a_namespace_that_is_gone_is_an_error(world: NatWorld) -> None:
    with pytest.raises(NamespaceError):
        await world.client.sync(client_spec(world), NetnsPath(Path("/run/netns/coil-absent")))


async def test_no_uplink_is_an_error_that_names_it(world: NatWorld) -> None:
    world.stage.client.netns.ip("link", "set", "eth0", "down")
    world.stage.client.netns.ip("link", "set", "eth0", "name", "net1")
    with pytest.raises(NetlinkError, match="there is no link eth0"):
        await world.sync(world.gateway())


@pytest.mark.slow
async def test_peers_go_and_only_they(world: NatWorld) -> None:
    clients = [ip_address("10.64.1.0") + number for number in range(70)]
    await world.router.add_peers(clients, SourcePort.FIXED)
    assert await world.router.peers() == {*clients}
    await world.router.remove_peers([*clients[:69], ip_address("10.64.9.9")])
    assert await world.router.peers() == {clients[69]}
    pod = world.stage.router.netns
    assert [name for name in made(pod) if name.startswith("fou")] == [tunnel_name(clients[69])]
    await world.router.remove_peers(clients)
    assert lines(pod, "ip", "route", "show", "table", "118") == []


@pytest.mark.slow
async def test_the_router_itself_and_families_that_it_lacks_are_no_peers(world: NatWorld) -> None:
    host = world.stage.add_pod(7)
    async with RouterNetwork(host.netns.path) as router:
        await router.set_up(RouterSpec(addresses=(host.addresses[Family.IPV4],)))
        await router.add_peers((*host.addresses.values(), *world.stage.client.addresses.values()), SourcePort.FIXED)
        assert await router.peers() == {world.stage.client.addresses[Family.IPV4]}
    assert fou_ports(host.netns) == {"port 5555 ipproto 4"}


@pytest.mark.slow
async def test_two_peers_of_one_device_name(world: NatWorld) -> None:
    one, two, other = map(ip_address, (*COLLIDING, "fd68::9"))
    with pytest.raises(NetlinkError, match=f"no tunnel to {two}: its device name, fou6_e68904f8, is taken"):
        await world.router.add_peers((one, two, other), SourcePort.FIXED)
    assert await world.router.peers() == {one, other}
    with pytest.raises(NetlinkError, match="is taken"):
        await world.router.add_peers((two,), SourcePort.FIXED)
    await world.router.remove_peers((two,))
    assert await world.router.peers() == {one, other}
    await world.router.remove_peers((one,))
    await world.router.add_peers((two,), SourcePort.FIXED)
    assert await world.router.peers() == {two, other}


@pytest.mark.slow
async def test_a_set_up_keeps_peers_and_clears_away_what_is_half_made(world: NatWorld) -> None:
    clients = [ip_address(text) for text in ("10.64.1.1", "10.64.1.2", "10.64.1.3")]
    await world.router.add_peers(clients, SourcePort.FIXED)
    pod = world.stage.router.netns
    pod.ip("link", "set", tunnel_name(clients[0]), "down")
    pod.ip("route", "delete", str(clients[1]), "table", "118")
    assert await world.router.peers() == {clients[2]}
    await world.router.add_peers(clients[:1], SourcePort.AUTO)
    assert await world.router.peers() == {clients[0], clients[2]}
    await world.open_router(world.stage.router)
    assert set(made(pod)) == {tunnel_name(clients[0]), tunnel_name(clients[2]), "coil_ipip4", "coil_ipip6"}
    await world.router.add_peers(clients, SourcePort.FIXED)
    assert {made(pod)[tunnel_name(client)]["ports"] for client in clients} == {(5555, 5555)}


@pytest.mark.slow
async def test_counters_outlive_a_set_up(world: NatWorld) -> None:
    await world.connect()
    ask(world.stage.client, world.stage.outside, Family.IPV4)
    before = await world.router.counters()
    assert {(str(counter.kind), counter.family, counter.packets) for counter in before} == {
        ("masqueraded", Family.IPV4, 1),
        ("masqueraded", Family.IPV6, 0),
        *((kind, family, 0) for kind in ("invalid", "unknown_client", "other_destination") for family in Family),
    }
    router = await world.open_router(world.stage.router)
    assert await router.counters() == before


@pytest.mark.slow
async def test_a_sysctl_that_cannot_be_written_is_named_with_what_to_do(world: NatWorld) -> None:
    host = world.stage.add_pod(8)
    # A namespace begins with what the machine's own has.
    host.netns.set_sysctl("net/ipv4/ip_forward", "0")
    script = (
        "import asyncio, sys\n"
        "from ipaddress import ip_address\n"
        "from coil.egress.gateway import RouterSpec\n"
        "from coil.nat.router import RouterNetwork\n"
        "async def main():\n"
        "    async with RouterNetwork() as router:\n"
        "        await router.set_up(RouterSpec(addresses=(ip_address('10.64.0.8'),)))\n"
        "asyncio.run(main())\n"
    )
    argv = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o ro proc /proc && exec "$@"', "sh", sys.executable, "-c"]
    failed = subprocess.run(
        ["nsenter", f"--net={host.netns.path}", "--", *argv, script], capture_output=True, text=True, check=False
    )
    assert failed.returncode != 0
    assert "cannot set net/ipv4/ip_forward to 1: Read-only file system; coild writes it" in failed.stderr
    assert "securityContext.sysctls has to name net.ipv4.ip_forward" in failed.stderr
    lines(host.netns, "sysctl", "-w", "net.ipv4.ip_forward=1")
    again = subprocess.run(["nsenter", f"--net={host.netns.path}", "--", *argv, script], check=False)
    wait_until(lambda: again.returncode == 0, what="a router whose sysctls are right already")


@pytest.mark.slow
async def test_a_cancelled_sync_takes_effect_before_the_next(world: NatWorld) -> None:
    first = asyncio.create_task(world.sync(world.gateway()))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await world.sync()
    assert made(world.stage.client.netns) == {}
    changed = replace(world.gateway(), destinations=(ip_network("203.0.113.0/25"),))
    results = await asyncio.gather(world.sync(world.gateway()), world.sync(changed), world.sync())
    assert [bool(result) for result in results] == [True, True, True]
    assert made(world.stage.client.netns) == {}
