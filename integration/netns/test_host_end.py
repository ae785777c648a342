"""The host's end of a veth that another plugin has made: found from the pod, named, and the way back; never another."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from coil.egress.router_plan import plan_router_sysctls
from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.netlink.error import NamespaceError, NetlinkError
from coil.netlink.host import HostNetwork
from coil.podnet.host_link import PodAlias, render_alias
from integration.netns.netns import Netns

pytestmark = pytest.mark.kernel

IFNAME = LinkName("eth0")
ALIAS = PodAlias("", "8f14e45f-ceea-467f-a1c0-5a8d6f0c2b11", "eth0")


def add_veth(host: Netns, pod: Netns, name: str, *, ifname: str = IFNAME) -> None:
    host.ip("link", "add", name, "type", "veth", "peer", "name", ifname, "netns", pod.name)


def aliases(host: Netns) -> dict[str, str]:
    return {link["ifname"]: link["ifalias"] for link in host.read("link") if "ifalias" in link}


async def inode_behind(network: HostNetwork, alias: PodAlias) -> int:
    namespace = await network.open_pod_namespace(alias)
    assert namespace is not None
    with namespace:
        return Path(f"/proc/self/fd/{namespace.fileno()}").stat().st_ino


async def test_each_pod_s_own_link_is_named_and_leads_back(
    host: Netns, new_netns: Callable[[], Netns], network: HostNetwork
) -> None:
    """The interfaces of all pods have the same name, and some the same index."""
    pods = [new_netns() for _ in range(4)]
    for number, pod in enumerate(pods):
        add_veth(host, pod, f"plug{number}")
    for number, pod in enumerate(pods):
        alias = PodAlias("", f"uid-{number}", "eth0")
        assert await network.name_host_end(IFNAME, alias, pod.path) == f"plug{number}"
        assert await network.name_host_end(IFNAME, alias, pod.path) == f"plug{number}", "again"
    assert aliases(host) == {f"plug{number}": f"COIL::uid-{number}:eth0" for number in range(4)}
    for number, pod in enumerate(pods):
        assert await inode_behind(network, PodAlias("", f"uid-{number}", "eth0")) == pod.path.stat().st_ino
    assert {link.alias.container_id for link in await network.pod_links()} == {f"uid-{number}" for number in range(4)}


async def test_a_link_of_another_name_or_alias_is_taken_over(host: Netns, pod: Netns, network: HostNetwork) -> None:
    add_veth(host, pod, "plug0")
    host.ip("link", "set", "plug0", "alias", "what the other plugin wrote")
    await network.name_host_end(IFNAME, ALIAS, pod.path)
    host.ip("link", "set", "plug0", "name", "renamed")
    assert aliases(host) == {"renamed": render_alias(ALIAS)}
    assert await inode_behind(network, ALIAS) == pod.path.stat().st_ino


@pytest.mark.parametrize("kind", ["bridge", "inside", "elsewhere"])
async def test_an_interface_that_has_no_end_on_the_host(
    host: Netns, new_netns: Callable[[], Netns], network: HostNetwork, kind: str
) -> None:
    """Even if a link of the host has the very numbers that the interface tells of its other end."""
    pod, third = new_netns(), new_netns()
    match kind:
        case "bridge":
            pod.ip("link", "add", IFNAME, "type", "bridge")
        case "inside":
            pod.ip("link", "add", "other", "index", "77", "type", "veth", "peer", "name", IFNAME)
        case "elsewhere":
            third.ip("link", "add", "x", "index", "77", "type", "veth", "peer", "name", IFNAME, "netns", pod.name)
            add_veth(host, third, "plug0", ifname="eth0")
    decoy = new_netns()
    host.ip("link", "add", "x", "index", "77", "type", "veth", "peer", "name", "y", "netns", decoy.name)
    assert await network.name_host_end(IFNAME, ALIAS, pod.path) is None
    assert aliases(host) == {}
    assert await network.open_pod_namespace(ALIAS) is None


async def test_what_cannot_be_a_pod(host: Netns, pod: Netns, network: HostNetwork) -> None:
    with pytest.raises(NetlinkError, match="no interface eth0"):
        await network.name_host_end(IFNAME, ALIAS, pod.path)
    with pytest.raises(NamespaceError, match="own"):
        await network.name_host_end(IFNAME, ALIAS, host.path)
    with pytest.raises(NamespaceError, match="own"):
        await network.ensure_pod_sysctls(plan_router_sysctls(tuple(Family)), host.path)


async def test_two_links_of_one_alias_lead_nowhere(
    host: Netns, new_netns: Callable[[], Netns], network: HostNetwork
) -> None:
    for number in range(2):
        pod = new_netns()
        add_veth(host, pod, f"plug{number}")
        await network.name_host_end(IFNAME, ALIAS, pod.path)
    with pytest.raises(NetlinkError, match="2 links have the alias"):
        await network.open_pod_namespace(ALIAS)


async def test_a_link_made_anew_leads_to_the_new_pod_or_nowhere(
    host: Netns, new_netns: Callable[[], Netns], network: HostNetwork
) -> None:
    first, second = new_netns(), new_netns()
    add_veth(host, first, "plug0")
    await network.name_host_end(IFNAME, ALIAS, first.path)
    host.ip("link", "delete", "plug0")
    add_veth(host, second, "plug0")
    assert await network.open_pod_namespace(ALIAS) is None, "the name says nothing"
    await network.name_host_end(IFNAME, ALIAS, second.path)
    assert await inode_behind(network, ALIAS) == second.path.stat().st_ino


async def test_a_router_pod_s_sysctls(pod: Netns, host: Netns, network: HostNetwork) -> None:
    def forwarding(netns: Netns) -> list[str]:
        paths = ("net/ipv4/ip_forward", "net/ipv4/conf/all/rp_filter", "net/ipv6/conf/all/forwarding")
        command = ["ip", "netns", "exec", netns.name, "cat", *(f"/proc/sys/{path}" for path in paths)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()

    before = forwarding(host)
    await network.ensure_pod_sysctls(plan_router_sysctls(tuple(Family)), pod.path)
    assert forwarding(pod) == ["1", "0", "1"]
    add_veth(host, pod, "plug0")
    await network.name_host_end(IFNAME, ALIAS, pod.path)
    namespace = await network.open_pod_namespace(ALIAS)
    assert namespace is not None
    with namespace:
        await network.ensure_pod_sysctls(plan_router_sysctls((Family.IPV4,)), namespace)
    assert forwarding(host) == before
