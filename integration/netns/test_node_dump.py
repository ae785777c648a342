"""What coil-node-dump tells of a node is what iproute2 says, and what Coil's own codec reads; it changes nothing."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from ipaddress import ip_interface, ip_network
from typing import Any

import pytest

from coil.netlink.host import HostNetwork
from coil.podnet.plan import DEFAULT_POLICY
from integration.netns.netns import Netns
from integration.netns.plans import pod_plan
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

Document = dict[str, Any]


def dump(host: Netns, *arguments: str) -> Document:
    command = [sys.executable, "-m", "coil_node_dump", "--inspect-page-addr=off", *arguments]
    done = subprocess.run(
        ["ip", "netns", "exec", host.name, *command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    document: Document = json.loads(done.stdout)
    return document


async def populate(network: HostNetwork, host: Netns, pods: list[Netns]) -> None:
    """Two pods, a VXLAN link with a peer, marks, routes of every type, several next hops, and a table of nftables."""
    host.set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    for number, pod in enumerate(pods, start=1):
        await network.attach_pod(pod_plan(number), pod.path)
    host.ip("link", "add", "up0", "type", "veth", "peer", "name", "up1")
    for link in ("up0", "up1"):
        host.ip("link", "set", link, "up")
    host.ip("address", "add", "192.0.2.1/24", "dev", "up0")
    host.ip("address", "add", "192.0.2.9", "peer", "192.0.2.10/32", "dev", "up0")
    host.ip("-6", "address", "add", "2001:db8::1/64", "dev", "up0", "nodad")
    host.ip("link", "add", "mesh", "type", "vxlan", "id", "100", "dstport", "7789", "local", "192.0.2.1", "dev", "up0")
    host.ip("link", "set", "mesh", "up")
    subprocess.run(
        ["bridge", "-n", host.name, "fdb", "add", "02:00:00:00:00:05", "dev", "mesh", "dst", "192.0.2.5"],
        check=True,
        timeout=60,
    )
    host.ip("neighbour", "add", "192.0.2.5", "lladdr", "02:00:00:00:00:05", "dev", "up0")
    host.ip("rule", "add", "priority", "900", "fwmark", "0x26000001/0xffff0000", "lookup", "500", "protocol", "30")
    host.ip("rule", "add", "priority", "901", "not", "from", "10.0.0.0/8", "iif", "up0", "goto", "2000")
    host.ip("-6", "rule", "add", "priority", "902", "to", "2001:db8:1::/48", "oif", "up0", "unreachable")
    host.ip("route", "add", "10.1.0.0/16", "via", "192.0.2.7", "table", "500", "mtu", "1400", "metric", "7")
    host.ip("route", "add", "10.2.0.0/16", "nexthop", "via", "192.0.2.7", "nexthop", "via", "192.0.2.8")
    host.ip("route", "add", "10.3.0.0/16", "via", "inet6", "2001:db8::7", "dev", "up0")
    for kind in ("unreachable", "blackhole", "prohibit", "throw"):
        host.ip("route", "add", kind, f"10.4.{len(kind)}.0/24", "table", "119", "protocol", "30")
    host.ip("-6", "route", "add", "default", "via", "2001:db8::9")
    await asyncio.to_thread(
        wait_until, lambda: has_settled(host), what="the kernel's own addresses and routes are there"
    )


def has_settled(host: Netns) -> bool:
    """The kernel adds them some time after a link is up."""
    told = {
        link["ifname"]
        for link in host.read("-6", "address")
        if any(address["local"].startswith("fe80:") for address in link["addr_info"])
    }
    return {"up0", "up1", "mesh"} <= told


def told_of(document: Document, *own: Netns) -> list[str]:
    """Troubles and what was cut, but for namespaces of others: in those, anything may be going on."""
    paths = {str(each.path) for each in own}
    told = [*document["troubles"], *document["truncated"]]
    return [each for each in told if not each.startswith("/run/") or each.partition(":")[0] in paths]


def names(node: Document) -> dict[int, str]:
    return {link["index"]: link["name"] for link in node["links"]}


def links_of(node: Document) -> set[tuple[Any, ...]]:
    return {
        (each["index"], each["name"], each["kind"], each["mac"], each["mtu"], each["alias"], "UP" in each["flags"])
        for each in node["links"]
    }


def links_by_iproute(host: Netns) -> set[tuple[Any, ...]]:
    return {
        (
            *(each["ifindex"], each["ifname"], each.get("linkinfo", {}).get("info_kind", "")),
            *(each.get("address", ""), each["mtu"], each.get("ifalias", ""), "UP" in each["flags"]),
        )
        for each in host.read("link")
    }


def addresses_by_iproute(host: Netns) -> set[tuple[int, str, str]]:
    return {
        (link["ifindex"], f"{address['local']}/{address['prefixlen']}", address["scope"])
        for link in host.read("address")
        for address in link["addr_info"]
    }


def rules_by_iproute(host: Netns) -> set[tuple[Any, ...]]:
    found = set()
    for family, option in ((2, "-4"), (10, "-6")):
        for each in host.read(option, "-N", "rule"):
            found.add(
                (
                    *(family, each["priority"], _number(each.get("table")), _number(each.get("fwmark"))),
                    *(each.get("iif", ""), each.get("oif", ""), each.get("goto"), "not" in each),
                    *(_prefix(each, "src"), _prefix(each, "dst")),
                )
            )
    return found


def _number(value: Any) -> int | None:
    return None if value is None else int(str(value), 0)


def _prefix(each: Document, what: str) -> str:
    text = each.get(what, "all")
    return "" if text == "all" else f"{text}/{each.get(what + 'len', '')}"


def rules_of(node: Document) -> set[tuple[Any, ...]]:
    return {
        (
            *(each["family"], each["priority"], each["table"] or None, each["mark"]),
            *(each["inputLink"], each["outputLink"], each["goto"], each["inverted"]),
            *(each["source"], each["destination"]),
        )
        for each in node["rules"]
    }


def routes_by_iproute(host: Netns) -> set[tuple[Any, ...]]:
    found = set()
    for family, option in ((2, "-4"), (10, "-6")):
        for each in host.read(option, "-N", "route", "show", "table", "all"):
            anything = "0.0.0.0/0" if family == 2 else "::/0"
            destination = anything if each["dst"] == "default" else str(ip_network(each["dst"]))
            hops = each.get("nexthops") or ([each] if "dev" in each else [])
            found.add(
                (
                    *(family, int(each.get("table", 254)), destination, each.get("metric", 0)),
                    frozenset((hop["dev"], hop.get("gateway") or hop.get("via", {}).get("host", "")) for hop in hops),
                )
            )
    return found


def routes_of(node: Document) -> set[tuple[Any, ...]]:
    known = names(node)
    return {
        (
            *(each["family"], each["table"], each["destination"], each["metric"]),
            frozenset((known[hop["link"]], hop["gateway"]) for hop in each["hops"]),
        )
        for each in node["routes"]
    }


async def test_it_is_what_iproute2_says(network: HostNetwork, host: Netns, new_netns: Callable[[], Netns]) -> None:
    pods = [new_netns(), new_netns()]
    await populate(network, host, pods)
    before = host.state()
    document = await asyncio.to_thread(dump, host)
    assert host.state() == before
    assert document["version"] == 1
    assert told_of(document, host, *pods) == []
    node = document["node"]
    assert links_of(node) == links_by_iproute(host)
    assert {(each["link"], each["address"], each["scope"]) for each in node["addresses"]} == addresses_by_iproute(host)
    assert rules_of(node) == rules_by_iproute(host)
    assert routes_of(node) == routes_by_iproute(host)
    neighbours = {(each["dst"], each["lladdr"]) for each in host.read("neighbour", "show", "nud", "permanent")}
    assert {(each["address"], each["mac"]) for each in node["neighbours"] if each["state"] == "PERMANENT"} >= neighbours
    [entry] = [each for each in node["forwardingEntries"] if each["destination"]]
    assert (names(node)[entry["link"]], entry["mac"], entry["destination"]) == (
        *("mesh", "02:00:00:00:00:05", "192.0.2.5"),
    )
    [mesh] = [each for each in node["links"] if each["name"] == "mesh"]
    assert (mesh["info"]["IFLA_VXLAN_ID"], mesh["info"]["IFLA_VXLAN_PORT"]) == (100, 7789)
    types = {each["type"] for each in node["routes"] if each["table"] == 119}
    assert types == {"unreachable", "blackhole", "prohibit", "throw"}
    assert node["sysctls"]["net/ipv4/ip_forward"] == "1"


async def test_coils_own_codec_reads_the_same(
    network: HostNetwork, host: Netns, new_netns: Callable[[], Netns]
) -> None:
    pods = [new_netns(), new_netns()]
    await populate(network, host, pods)
    node = (await asyncio.to_thread(dump, host))["node"]
    links = {(each["name"], each["alias"]) for each in node["links"] if each["alias"].startswith("COIL:")}
    assert {link.name for link in await network.pod_links()} == {name for name, _ in links}
    own = [each for each in node["routes"] if each["table"] == DEFAULT_POLICY.pod_table]
    listed = await network.pod_routes(DEFAULT_POLICY.pod_table)
    assert {(str(route.destination), route.device) for route in listed} == {
        (each["destination"], names(node)[each["hops"][0]["link"]]) for each in own
    }


async def test_the_namespaces_of_pods_are_read_each_once(
    network: HostNetwork, host: Netns, new_netns: Callable[[], Netns]
) -> None:
    pods = [new_netns(), new_netns()]
    await populate(network, host, pods)
    document = await asyncio.to_thread(dump, host)
    by_path = {each["path"].rpartition("/")[2]: each for each in document["pods"]}
    assert host.name not in by_path, "that is the node's own"
    ends = {(each["index"], each["link"]) for each in document["node"]["links"] if each["alias"]}
    for number, pod in enumerate(pods, start=1):
        found = by_path[pod.name]
        [eth0] = [each for each in found["links"] if each["name"] == "eth0"]
        assert (eth0["link"], eth0["index"]) in ends
        addresses = {ip_interface(each["address"]).ip for each in found["addresses"]}
        assert {interface.interface.ip for interface in pod_plan(number).assignments} <= addresses
    assert len(by_path) == len(document["pods"])


async def test_what_is_too_long_is_cut_and_told(network: HostNetwork, host: Netns) -> None:
    for number in range(20):
        host.ip("route", "add", "unreachable", f"10.9.{number}.0/24", "table", "119")
    document = await asyncio.to_thread(dump, host, "--entries=5", "--table-bytes=0", "--parts=node,tables")
    assert len(document["node"]["routes"]) == 5
    assert set(document["truncated"]) >= {"node: routes", "nftables: elements of sets"}
    assert document["pods"] == []
    late = await asyncio.to_thread(dump, host, "--time-limit=1ns")
    assert "the node: no time was left" in late["troubles"]
