"""Routes and rules of the host: brought in line from any start, with other people's left alone."""

from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address
from random import Random
from typing import Any

import pytest

from coil.kernel.family import Family, IPNetwork
from coil.kernel.link import LinkName
from coil.kernel.route import Route, RouteScope, diff_routes
from coil.kernel.rule import Rule
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.host import HostNetwork
from coil.podnet.block_route import plan_export
from coil.podnet.plan import plan_rules
from integration.netns.netns import Netns
from integration.netns.plans import pod_plan

pytestmark = pytest.mark.kernel

BLOCKS: list[IPNetwork] = [
    *(IPv4Network((0x0A400000 + number * 32, 27)) for number in range(40)),
    *(IPv6Network(((0xFD64 << 112) + number * 32, 123)) for number in range(40)),
]


def table(host: Netns, number: int = 119) -> set[tuple[str, str, str]]:
    """Destination, link and protocol of each route in a table."""
    entries: list[dict[str, Any]] = []
    for family in ("-4", "-6"):
        entries += host.read(family, "route", "show", "table", str(number))
    return {(entry["dst"], entry["dev"], entry["protocol"]) for entry in entries}


def exported(blocks: list[IPNetwork]) -> set[tuple[str, str, str]]:
    return {(str(block), "lo", "30") for block in blocks}


async def sync(network: HostNetwork, blocks: list[IPNetwork]) -> int:
    """Export the blocks; the number of changes it took."""
    changes = await network.sync_routes(table=119, protocol=30, wanted=plan_export(blocks))
    return len(changes.adds) + len(changes.deletes)


@pytest.mark.parametrize("seed", range(4))
async def test_it_converges_from_any_start(network: HostNetwork, host: Netns, seed: int) -> None:
    random = Random(seed)
    foreign = {("10.99.0.0/24", "lo", "31"), ("fd99::/64", "lo", "31")}
    for destination, device, protocol in foreign:
        host.ip("route", "add", destination, "dev", device, "table", "119", "proto", protocol)
    before: list[IPNetwork] = []
    for _ in range(8):
        wanted = random.sample(BLOCKS, random.randrange(len(BLOCKS)))
        assert await sync(network, wanted) == len(set(before) ^ set(wanted))
        assert table(host) == exported(wanted) | foreign
        assert await sync(network, wanted) == 0
        before = wanted


async def test_routes_of_our_protocol_that_we_would_not_make_are_removed(network: HostNetwork, host: Netns) -> None:
    for command in (
        "route add blackhole 10.64.0.0/27 table 119 proto 30",
        "route add 10.64.0.32/27 dev lo table 119 proto 30 metric 5",
        "route add 10.64.0.64/27 dev lo table 119 proto 30 scope global",
        "route add 10.64.0.96/27 table 119 proto 30 nexthop dev lo nexthop dev lo",
        "-6 route add blackhole fd64::/123 table 119 proto 30",
        "-6 route add fd64::20/123 dev lo table 119 proto 30 metric 5",
    ):
        host.ip(*command.split())
    wanted = [*BLOCKS[:4], *BLOCKS[40:42]]
    await sync(network, wanted)
    assert table(host) == exported(wanted)
    assert all(entry["type"] == "unicast" for entry in host.read("route", "show", "table", "119"))
    assert await sync(network, wanted) == 0
    assert await sync(network, []) == len(wanted)
    assert table(host) == set()


async def test_other_tables_are_left_alone(network: HostNetwork, host: Netns) -> None:
    host.ip("route", "add", "10.64.0.0/27", "dev", "lo", "table", "120", "proto", "30")
    await sync(network, BLOCKS[:1])
    await sync(network, [])
    assert table(host, 120) == {("10.64.0.0/27", "lo", "30")}


async def test_a_table_that_does_not_exist_is_empty(network: HostNetwork) -> None:
    assert await network.pod_routes(4321) == []
    assert await sync(network, []) == 0


async def test_table_numbers_beyond_a_byte(network: HostNetwork, host: Netns) -> None:
    route = Route(destination=BLOCKS[0], device=LinkName("lo"), table=70_000, protocol=30, scope=RouteScope.LINK)
    await network.sync_routes(table=70_000, protocol=30, wanted=[route])
    assert table(host, 70_000) == {("10.64.0.0/27", "lo", "30")}
    assert await network.pod_routes(70_000) == [route]


async def test_the_source_of_a_route_comes_changes_and_goes_in_one_step(network: HostNetwork, host: Netns) -> None:
    for address in ("10.7.0.9/32", "10.7.0.10/32", "fd07::9/128", "fd07::10/128"):
        host.ip("address", "add", address, "dev", "lo")
    networks: list[IPNetwork] = [IPv4Network("203.0.113.0/24"), IPv6Network("2001:db8:1::/64")]
    for sources in ((None, None), ("10.7.0.9", "fd07::9"), ("10.7.0.10", "fd07::10"), (None, None)):
        wanted = [
            Route(
                destination=destination,
                device=LinkName("lo"),
                table=118,
                protocol=30,
                source=None if source is None else ip_address(source),
            )
            for destination, source in zip(networks, sources, strict=True)
        ]
        changes = await network.sync_routes(table=118, protocol=30, wanted=wanted)
        assert (changes.clears, changes.deletes) == ((), ())
        found = [host.read(family, "route", "show", "table", "118") for family in ("-4", "-6")]
        assert [[entry.get("prefsrc") for entry in entries] for entries in found] == [[source] for source in sources]
        assert not await network.sync_routes(table=118, protocol=30, wanted=wanted)
    await network.sync_routes(table=118, protocol=30, wanted=[])
    assert table(host, 118) == set()


async def test_thousands_of_routes(network: HostNetwork, host: Netns) -> None:
    blocks: list[IPNetwork] = [IPv4Network((0x0A000000 + number * 32, 27)) for number in range(5000)]
    assert await sync(network, blocks) == 5000
    assert await sync(network, blocks) == 0
    assert len(table(host)) == 5000
    assert await sync(network, blocks[:10]) == 4990
    assert table(host) == exported(blocks[:10])


async def test_a_destination_that_somebody_else_has_stops_only_itself(network: HostNetwork, host: Netns) -> None:
    host.ip("route", "add", "10.64.0.0/27", "dev", "lo", "table", "119", "proto", "31", "scope", "link")
    with pytest.raises(KernelError, match=r"add route 10\.64\.0\.0/27 dev lo table 119 proto 30: File exists"):
        await sync(network, BLOCKS[:5])
    assert table(host) == exported(BLOCKS[1:5]) | {("10.64.0.0/27", "lo", "31")}


async def test_the_kernels_own_words_are_in_the_error(network: HostNetwork) -> None:
    route = Route(
        destination=BLOCKS[0], gateway=IPv4Address("203.0.113.9"), device=LinkName("lo"), table=119, protocol=30
    )
    with pytest.raises(KernelError, match=r"\(Nexthop has invalid gateway\)"):
        await network.sync_routes(table=119, protocol=30, wanted=[route])


async def test_a_route_over_a_link_that_is_not_there(network: HostNetwork, host: Netns) -> None:
    lost = Route(destination=BLOCKS[0], device=LinkName("gone0"), table=119, protocol=30, scope=RouteScope.LINK)
    with pytest.raises(NetlinkError, match="there is no link gone0"):
        await network.sync_routes(table=119, protocol=30, wanted=[lost, *plan_export(BLOCKS[1:3])])
    assert table(host) == exported(BLOCKS[1:3])


async def test_only_routes_of_that_table_and_protocol_may_be_wanted(network: HostNetwork) -> None:
    with pytest.raises(ValueError, match="not of table 119 and protocol 31"):
        await network.sync_routes(table=119, protocol=31, wanted=plan_export(BLOCKS[:1]))


async def test_a_read_table_is_what_was_synced(network: HostNetwork) -> None:
    wanted = plan_export(BLOCKS)
    await network.sync_routes(table=119, protocol=30, wanted=wanted)
    assert not diff_routes(await network.pod_routes(119), wanted)


def rules(host: Netns) -> list[tuple[str, int, str, str]]:
    """Family, priority, table and protocol of all rules but the kernel's."""
    return [
        (family, entry["priority"], entry["table"], entry["protocol"])
        for family in ("-4", "-6")
        for entry in host.read(family, "rule")
        if entry["protocol"] != "kernel"
    ]


OURS = [("-4", 2000, "116", "30"), ("-6", 2000, "116", "30")]


async def test_rules_are_made_once(network: HostNetwork, host: Netns) -> None:
    assert rules(host) == OURS
    for _ in range(3):
        assert not await network.ensure_rules(plan_rules())
    assert rules(host) == OURS


async def test_stale_rules_of_ours_go_and_other_peoples_stay(network: HostNetwork, host: Netns) -> None:
    for family in ("-4", "-6"):
        host.ip(family, "rule", "add", "pref", "2000", "table", "115", "protocol", "30")
        host.ip(family, "rule", "add", "pref", "1999", "table", "116", "protocol", "30")
        host.ip(family, "rule", "add", "pref", "2001", "table", "116", "protocol", "77")
        host.ip(family, "rule", "add", "pref", "2000", "fwmark", "1", "table", "116", "protocol", "30")
    await network.ensure_rules(plan_rules())
    for family in ("-4", "-6"):
        mine = [rule for rule in host.read(family, "rule") if rule["protocol"] != "kernel"]
        assert sorted((rule["priority"], rule["table"], rule["protocol"], "fwmark" in rule) for rule in mine) == [
            (2000, "116", "30", False),
            (2000, "116", "30", True),  # it selects packets, so it is no plain lookup and none of ours
            (2001, "116", "77", False),
        ]


async def test_a_rule_that_the_operator_made_is_enough(host: Netns) -> None:
    for family in ("-4", "-6"):
        host.ip(family, "rule", "add", "pref", "2000", "table", "116")
    before = rules(host)
    async with HostNetwork(host.path) as network:
        await network.ensure_rules(plan_rules())
    assert rules(host) == before


async def test_rules_of_one_family(network: HostNetwork, host: Netns) -> None:
    await network.ensure_rules([Rule(family=Family.IPV6, priority=2000, table=116, protocol=30)])
    assert rules(host) == OURS[1:]


async def test_the_uplink_is_where_the_nodes_address_is(network: HostNetwork, host: Netns) -> None:
    host.ip("link", "add", "up0", "mtu", "1420", "type", "veth", "peer", "name", "up1")
    for link in ("up0", "up1"):
        host.ip("link", "set", link, "up")
    host.ip("address", "add", "192.0.2.7/24", "dev", "up0")
    host.ip("address", "add", "198.51.100.7/24", "dev", "up1")
    host.ip("route", "add", "default", "via", "198.51.100.1")
    uplink = await network.uplink([IPv4Address("192.0.2.7")])
    assert (uplink.name, uplink.mtu) == ("up0", 1420)
    assert (await network.uplink()).name == "up1"
    assert (await network.uplink([IPv4Address("192.0.2.99")])).name == "up1"
    host.ip("route", "del", "default")
    with pytest.raises(NetlinkError, match="no uplink"):
        await network.uplink()


async def test_the_uplink_of_a_node_with_ipv6_alone(network: HostNetwork, host: Netns) -> None:
    host.ip("link", "add", "up0", "type", "veth", "peer", "name", "up1")
    for link in ("up0", "up1"):
        host.ip("link", "set", link, "up")
    host.ip("address", "add", "2001:db8:1::7/64", "dev", "up0", "nodad")
    host.ip("-6", "route", "add", "default", "via", "2001:db8:1::1")
    assert (await network.uplink()).name == "up0"


@pytest.mark.parametrize("holder", ["lo", "node0"])
@pytest.mark.parametrize("version", [4, 6])
async def test_the_uplinks_of_a_node_that_speaks_bgp(
    network: HostNetwork, host: Netns, holder: str, version: int
) -> None:
    """Its address is alone on a link by which nothing leaves; of those by which packets do, the smallest MTU counts."""
    for number, mtu in enumerate((9000, 1420)):
        host.ip("link", "add", f"up{number}", "mtu", str(mtu), "type", "veth", "peer", "name", f"tor{number}")
        for link in (f"up{number}", f"tor{number}"):
            host.ip("link", "set", link, "up")
        host.ip("address", "add", f"192.0.2.{2 * number}/31", "dev", f"up{number}")
        host.ip("address", "add", f"2001:db8:{1 + number}::1/64", "dev", f"up{number}", "nodad")
    if holder != "lo":
        host.ip("link", "add", holder, "mtu", "1300", "type", "bridge")
        host.ip("link", "set", holder, "up")
    own, length, hops = (
        ("198.51.100.7", 32, ("192.0.2.1", "192.0.2.3"))
        if version == 4
        else ("2001:db8:9::7", 128, ("2001:db8:1::2", "2001:db8:2::2"))
    )
    host.ip("address", "add", f"{own}/{length}", "dev", holder)
    ways = [word for number, hop in enumerate(hops) for word in ("nexthop", "via", hop, "dev", f"up{number}")]
    host.ip(f"-{version}", "route", "add", "default", *ways)
    uplink = await network.uplink([ip_address(own)])
    assert (uplink.name, uplink.mtu) == ("up1", 1420)
    # An address without a network on a link by which packets leave, as clouds give it, says which.
    host.ip("address", "del", f"{own}/{length}", "dev", holder)
    host.ip("address", "add", f"{own}/{length}", "dev", "up0")
    assert (await network.uplink([ip_address(own)])).name == "up0"


async def test_forwarding_is_on_for_links_to_come(network: HostNetwork, host: Netns, pod: Netns) -> None:
    assert host.sysctl("net/ipv4/ip_forward") == "1"
    assert host.sysctl("net/ipv6/conf/all/forwarding") == "1"
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    assert host.sysctl(f"net/ipv6/conf/{plan.host.name}/forwarding") == "1"
    assert pod.sysctl("net/ipv6/conf/all/forwarding") == "0"
