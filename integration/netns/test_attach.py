"""What an attached pod consists of and that its connections work, as iproute2 and TCP see it."""

import subprocess
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from coil.kernel.link import LinkGroup, LinkName
from coil.netlink.error import PodCheckError
from coil.netlink.host import HostNetwork, NetnsPath
from coil.podnet.host_link import PodAlias, random_link_name
from coil.podnet.plan import LINK_LOCAL, HostAddresses, node_addresses, plan_pod
from integration.netns.netns import Netns, exchange
from integration.netns.plans import DUAL, pod_plan
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

FAMILIES = [("ipv4",), ("ipv6",), DUAL]
NODE = node_addresses([ip_address("192.0.2.7"), ip_address("2001:db8::7")])


def addresses(link: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The addresses of a link in `ip address show` by their text with the prefix length."""
    return {f"{entry['local']}/{entry['prefixlen']}": entry for entry in link["addr_info"]}


def lines(entries: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    """Routes of `ip route show`: destination, gateway, link, protocol, scope."""
    return {
        (entry["dst"], entry.get("gateway"), entry.get("dev"), entry.get("protocol"), entry.get("scope"))
        for entry in entries
    }


async def test_the_pods_end(network: HostNetwork, host: Netns, pod: Netns) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    link = pod.link("eth0")
    assert link is not None
    assert (link["operstate"], link["mtu"], link["address"]) == ("UP", 1400, plan.pod.mac)
    host_end = host.link(plan.host.name)
    assert host_end is not None
    assert (link["linkinfo"]["info_kind"], link["ifindex"]) == ("veth", host_end["link_index"])
    found = addresses(link)
    assert found["10.64.0.1/32"]["scope"] == "global"
    assert found["fd64::1/128"]["scope"] == "global"
    # (The kernel's own link-local address may take a moment longer.)
    assert not [address for address in ("10.64.0.1/32", "fd64::1/128") if found[address].get("tentative")]
    assert lines(pod.read("route")) == {
        ("default", "169.254.1.1", "eth0", "boot", "global"),
        ("169.254.1.1", None, "eth0", "boot", "link"),
    }
    assert lines(pod.read("-6", "route")) >= {
        ("default", "fe80::1", "eth0", "boot", "global"),
        ("fe80::1", None, "eth0", "boot", "global"),
    }
    neighbours = {(entry["dst"], entry["lladdr"], *entry["state"]) for entry in pod.read("neighbour")}
    assert neighbours == {("169.254.1.1", plan.host.mac, "PERMANENT"), ("fe80::1", plan.host.mac, "PERMANENT")}


async def test_the_hosts_end(network: HostNetwork, host: Netns, pod: Netns) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    link = host.link(plan.host.name)
    assert link is not None
    assert (link["operstate"], link["mtu"], link["address"]) == ("UP", 1400, plan.host.mac)
    pod_end = pod.link("eth0")
    assert pod_end is not None
    assert (link["ifalias"], link["ifindex"]) == (plan.host.alias, pod_end["link_index"])
    assert int(link["group"]) == LinkGroup.POD
    assert addresses(link).keys() == {"169.254.1.1/32", "fe80::1/64"}
    assert not [entry for entry in link["addr_info"] if entry.get("tentative")]
    name = plan.host.name
    assert lines(host.read("route", "show", "table", "116")) == {("10.64.0.1", None, name, "30", "link")}
    assert lines(host.read("-6", "route", "show", "table", "116")) == {("fd64::1", None, name, "30", "global")}
    assert host.sysctl(f"net/ipv6/conf/{name}/accept_ra") == "0"
    assert host.sysctl(f"net/ipv6/conf/{name}/forwarding") == "1"
    assert host.sysctl(f"net/ipv4/conf/{name}/forwarding") == "1"


@pytest.mark.parametrize("families", FAMILIES)
async def test_pod_and_host_reach_each_other_at_once(
    network: HostNetwork, host: Netns, pod: Netns, families: tuple[str, ...]
) -> None:
    host.ip("address", "add", "192.0.2.7/32", "dev", "lo")
    host.ip("address", "add", "2001:db8::7/128", "dev", "lo", "nodad")
    plan = pod_plan(families=families)
    await network.attach_pod(plan, pod.path)
    for assignment in plan.assignments:
        node = ip_address("192.0.2.7" if assignment.address.version == 4 else "2001:db8::7")
        exchange(host, pod, assignment.address)
        assert exchange(pod, host, node) == str(assignment.address)


@pytest.mark.parametrize("families", FAMILIES)
async def test_nothing_of_a_family_that_the_pod_does_not_have(
    network: HostNetwork, host: Netns, pod: Netns, families: tuple[str, ...]
) -> None:
    plan = pod_plan(families=families)
    await network.attach_pod(plan, pod.path)
    await network.check_pod(plan, pod.path)
    for family, option in (("ipv4", "-4"), ("ipv6", "-6")):
        present = family in families
        assert bool(host.read(option, "route", "show", "table", "116")) is present
        assert bool([line for line in lines(pod.read(option, "route")) if line[0] == "default"]) is present
        assert bool(pod.read(option, "neighbour")) is present


async def test_a_namespace_that_is_named_by_a_process(network: HostNetwork, host: Netns, pod: Netns) -> None:
    """As Docker does: nothing is mounted, and later the pod is found below /proc, too."""
    plan = pod_plan()
    with subprocess.Popen(["nsenter", f"--net={pod.path}", "sleep", "600"]) as process:
        try:
            path = NetnsPath(Path(f"/proc/{process.pid}/ns/net"))
            wait_until(lambda: path.stat().st_ino == pod.path.stat().st_ino, what="the process is in the namespace")
            await network.attach_pod(plan, path)
            await network.check_pod(plan, path)
            assert pod.link("eth0") is not None
        finally:
            process.kill()


async def test_the_nodes_own_addresses_as_gateways(network: HostNetwork, host: Netns, pod: Netns) -> None:
    for number, address in enumerate(("192.0.2.7/32", "2001:db8::7/128")):
        host.ip("address", "add", address, "dev", "lo", *(("nodad",) if number else ()))
    plan = pod_plan(gateways=NODE)
    await network.attach_pod(plan, pod.path)
    await network.check_pod(plan, pod.path)
    link = host.link(plan.host.name)
    assert link is not None
    # Neighbour discovery for what the node forwards needs a link-local address there.
    assert addresses(link).keys() == {"192.0.2.7/32", "2001:db8::7/128", "fe80::1/64"}
    for assignment in plan.assignments:
        assert assignment.gateway is not None
        assert exchange(host, pod, assignment.address) == str(assignment.gateway)
        assert exchange(pod, host, assignment.gateway) == str(assignment.address)


@pytest.mark.parametrize("gateways", [LINK_LOCAL, NODE])
async def test_two_pods_talk_through_the_host(
    network: HostNetwork, host: Netns, new_netns: Callable[[], Netns], gateways: HostAddresses
) -> None:
    pods = [new_netns(), new_netns()]
    plans = [pod_plan(number, gateways=gateways) for number in (1, 2)]
    for plan, netns in zip(plans, pods, strict=True):
        await network.attach_pod(plan, netns.path)
    for mine, theirs in ((0, 1), (1, 0)):
        for own, other in zip(plans[mine].assignments, plans[theirs].assignments, strict=True):
            assert exchange(pods[mine], pods[theirs], other.address) == str(own.address)


async def test_a_namespace_in_which_the_runtime_turned_ipv6_off(network: HostNetwork, host: Netns, pod: Netns) -> None:
    for scope in ("all", "default"):
        pod.set_sysctl(f"net/ipv6/conf/{scope}/disable_ipv6", "1")
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    for assignment in plan.assignments:
        exchange(host, pod, assignment.address)


async def test_a_second_interface_of_the_same_pod(network: HostNetwork, host: Netns, pod: Netns) -> None:
    first = pod_plan(1, families=("ipv4",))
    second = plan_pod(
        host_name=random_link_name(b"\xff\xff\xff\xff"),
        ifname=LinkName("net1"),
        alias=PodAlias("other", "c0ffee", "net1"),
        addresses=(None, pod_plan(2).assignments[1].address),  # type: ignore[arg-type]
        mtu=1400,
    )
    await network.attach_pod(first, pod.path)
    await network.attach_pod(second, pod.path)
    exchange(host, pod, first.assignments[0].address)
    exchange(host, pod, second.assignments[0].address)
    await network.detach_pod(first.host.name)
    await network.check_pod(second, pod.path)


async def test_the_alias_comes_back_from_the_kernel(network: HostNetwork, host: Netns, pod: Netns) -> None:
    longest = PodAlias("p" * 180, "c" * 64, "eth0")
    plan = plan_pod(
        host_name=LinkName("veth0badcafe"),
        ifname=LinkName("eth0"),
        alias=longest,
        addresses=(pod_plan().assignments[0].address, None),  # type: ignore[arg-type]
        mtu=1400,
    )
    await network.attach_pod(plan, pod.path)
    host.ip("link", "add", "stranger", "type", "veth", "peer", "name", "peer")
    host.ip("link", "set", "stranger", "alias", "somebody else's")
    (link,) = await network.pod_links()
    assert (link.name, link.alias, link.mac) == ("veth0badcafe", longest, plan.host.mac)
    (oracle,) = [found for found in host.read("link") if found["ifname"] == link.name]
    assert (oracle["ifindex"], oracle["ifalias"]) == (link.index, plan.host.alias)


async def test_the_pod_table_tells_the_addresses_of_each_link(network: HostNetwork, pod: Netns) -> None:
    plan = pod_plan()
    assert await network.pod_routes(116) == []
    await network.attach_pod(plan, pod.path)
    assert {(route.device, route.destination) for route in await network.pod_routes(116)} == {
        (plan.host.name, address.interface.network) for address in plan.pod.addresses
    }


@pytest.mark.parametrize(
    ("where", "damage", "missing"),
    [
        ("host", "route del 10.64.0.1 table 116", "route 10.64.0.1/32 dev {name} table 116 proto 30"),
        ("host", "-6 route del fd64::1 table 116", "route fd64::1/128 dev {name} table 116 proto 30"),
        ("host", "address del 169.254.1.1/32 dev {name}", "address 169.254.1.1/32 on {name}"),
        ("host", "link set {name} alias other", "alias 'COIL:default:"),
        ("host", "link set {name} mtu 1300", "MTU 1400 on {name} (it is 1300)"),
        ("host", "link del {name}", "link {name}; link eth0 (in the pod)"),
        ("pod", "address del fd64::1/128 dev eth0", "address fd64::1/128 on eth0 (in the pod)"),
        ("pod", "route del default", "route 0.0.0.0/0 via 169.254.1.1 dev eth0 table 254 proto 3 (in the pod)"),
        ("pod", "-6 route del default", "route ::/0 via fe80::1 dev eth0 table 254 proto 3 (in the pod)"),
        ("pod", "neighbour del fe80::1 dev eth0", "neighbour fe80::1 at {mac} on eth0 (in the pod)"),
        ("pod", "link set eth0 down", "link eth0 up (in the pod)"),
        ("pod", "link set eth0 address 02:00:00:00:00:99", "(it is 02:00:00:00:00:99) (in the pod)"),
    ],
)
async def test_a_check_names_what_is_missing(
    network: HostNetwork, host: Netns, pod: Netns, where: str, damage: str, missing: str
) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    await network.check_pod(plan, pod.path)
    words = {"name": plan.host.name, "mac": plan.host.mac}
    (host if where == "host" else pod).ip(*damage.format(**words).split())
    with pytest.raises(PodCheckError) as caught:
        await network.check_pod(plan, pod.path)
    assert missing.format(**words) in str(caught.value)
