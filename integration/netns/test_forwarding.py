"""What makes a router of the node, and what it must not lose by that."""

import pytest

from coil.kernel.family import Family
from coil.netlink.host import HostNetwork
from integration.netns.netns import Netns
from integration.netns.plans import pod_plan

pytestmark = pytest.mark.kernel

IPV4, IPV6 = "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"


@pytest.fixture
def node(host: Netns) -> Netns:
    """Nothing forwards yet; the kernel listens to routers on one link, and something else does on the other."""
    host.set_sysctl(IPV4, "0")
    host.set_sysctl(IPV6, "0")
    host.ip("link", "add", "up0", "type", "veth", "peer", "name", "up1")
    host.set_sysctl("net/ipv6/conf/up0/accept_ra", "1")
    host.set_sysctl("net/ipv6/conf/up1/accept_ra", "0")
    return host


def accepts(node: Netns) -> tuple[str, str]:
    return node.sysctl("net/ipv6/conf/up0/accept_ra"), node.sysctl("net/ipv6/conf/up1/accept_ra")


async def test_pods_of_one_family_leave_the_other_alone(node: Netns, pod: Netns) -> None:
    async with HostNetwork(node.path) as network:
        await network.attach_pod(pod_plan(families=("ipv4",)), pod.path)
    assert (node.sysctl(IPV4), node.sysctl(IPV6)) == ("1", "0")
    assert accepts(node) == ("1", "0")


async def test_the_first_pod_with_ipv6_keeps_what_routers_advertise(node: Netns, pod: Netns) -> None:
    async with HostNetwork(node.path) as network:
        await network.attach_pod(pod_plan(), pod.path)
    assert (node.sysctl(IPV4), node.sysctl(IPV6)) == ("1", "1")
    assert accepts(node) == ("2", "0")


async def test_a_pod_is_no_router_of_its_node(node: Netns, pod: Netns) -> None:
    """Of whatever network: another plugin's veth has the kernel's defaults."""
    node.ip("link", "add", "other0", "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    node.set_sysctl("net/ipv6/conf/other0/accept_ra", "1")
    async with HostNetwork(node.path) as network:
        await network.ensure_forwarding((Family.IPV6,))
    assert node.sysctl("net/ipv6/conf/other0/accept_ra") == "1"
    assert accepts(node) == ("2", "0")


async def test_the_uplink_of_a_node_that_is_a_container_leads_to_another_namespace(node: Netns, pod: Netns) -> None:
    """As LXD and kind have it; `pod` is the machine that has the node."""
    node.ip("link", "add", "eth0", "type", "veth", "peer", "name", "lxc0", "netns", pod.name)
    node.ip("address", "add", "198.51.100.7/24", "dev", "eth0")
    node.set_sysctl("net/ipv6/conf/eth0/accept_ra", "1")
    async with HostNetwork(node.path) as network:
        await network.ensure_forwarding((Family.IPV6,))
    assert node.sysctl("net/ipv6/conf/eth0/accept_ra") == "2"


async def test_what_forwards_already_is_left_as_it_is(node: Netns) -> None:
    node.set_sysctl(IPV6, "1")
    node.set_sysctl("net/ipv6/conf/up0/accept_ra", "1")
    async with HostNetwork(node.path) as network:
        await network.ensure_forwarding(tuple(Family))
    assert accepts(node) == ("1", "0")


async def test_none_is_asked_for(node: Netns) -> None:
    async with HostNetwork(node.path) as network:
        await network.ensure_forwarding(())
    assert (node.sysctl(IPV4), node.sysctl(IPV6)) == ("0", "0")
