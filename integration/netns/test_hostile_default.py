"""New links take their settings from the host's defaults, which an administrator has hardened, or something has spoilt:
whatever these are, pods reach each other and the node.
"""

from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import pytest

from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.netlink.error import PodCheckError
from coil.netlink.host import HostNetwork
from coil.podnet.plan import plan_rules
from integration.netns.netns import Netns, exchange
from integration.netns.plans import pod_plan

pytestmark = pytest.mark.kernel

_VALUES = ("0", "1", "2", "8", "-1")


@pytest.fixture
def pods(new_netns: Callable[[], Netns]) -> tuple[Netns, Netns]:
    return new_netns(), new_netns()


async def await_connected(network: HostNetwork, host: Netns, pods: tuple[Netns, Netns]) -> None:
    """Attach two pods, and have them and the node exchange something in both families."""
    await network.ensure_forwarding(tuple(Family))
    await network.ensure_rules(plan_rules())
    plans = [pod_plan(number) for number in (1, 2)]
    for plan, pod in zip(plans, pods, strict=True):
        await network.attach_pod(plan, pod.path)
        await network.check_pod(plan, pod.path)
    for address in ("10.64.0.2", "fd64::2"):
        for client in (pods[0], host):
            exchange(client, pods[1], ip_address(address))
    for plan in plans:
        await network.detach_pod(plan.host.name)


def spoil_resolution(host: Netns, link: LinkName) -> None:
    """Whoever has to ask for a hardware address gets none: nobody is asked, and no packet waits for the answer.

    As a link would have it from net.ipv4.neigh.default, which only the machine's first namespace has.
    """
    for family in ("ipv4", "ipv6"):
        for setting in ("mcast_solicit", "ucast_solicit", "app_solicit", "unres_qlen_bytes"):
            host.set_sysctl(f"net/{family}/neigh/{link}/{setting}", "0")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("ipv4/conf/default/forwarding", "0"),
        ("ipv6/conf/default/forwarding", "0"),
        ("ipv6/conf/default/disable_ipv6", "1"),
        ("ipv4/conf/default/rp_filter", "1"),
        ("ipv4/conf/default/arp_ignore", "8"),
        ("ipv6/conf/default/accept_dad", "2"),
    ],
)
async def test_one(network: HostNetwork, host: Netns, pods: tuple[Netns, Netns], setting: str, value: str) -> None:
    host.set_sysctl("net/ipv4/ip_forward", "1")
    host.set_sysctl(f"net/{setting}", value)
    await await_connected(network, host, pods)


async def test_a_node_that_asks_for_no_hardware_address_reaches_its_pods(
    network: HostNetwork, host: Netns, pod: Netns
) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    spoil_resolution(host, plan.host.name)
    for address in ("10.64.0.1", "fd64::1"):
        exchange(host, pod, ip_address(address))


async def test_neighbours_that_others_delete_are_missed_and_put_back(
    network: HostNetwork, host: Netns, pod: Netns
) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    for address in ("10.64.0.1", "fd64::1"):
        host.ip("neighbour", "delete", address, "dev", plan.host.name)
    with pytest.raises(PodCheckError) as missed:
        await network.check_pod(plan, pod.path)
    assert [str(each) for each in plan.host.neighbours] == list(missed.value.missing)
    assert [await network.ensure_neighbours(plan.host.neighbours) for _ in range(2)] == [2, 0]
    await network.check_pod(plan, pod.path)
    await network.detach_pod(plan.host.name)
    assert await network.ensure_neighbours(plan.host.neighbours) == 0


@pytest.mark.slow
async def test_each(network: HostNetwork, host: Netns, pods: tuple[Netns, Netns]) -> None:
    tried = 0
    for family in ("ipv4", "ipv6"):
        folder = f"net/{family}/conf/default"
        for path in [f"{folder}/{file.name}" for file in sorted((Path("/proc/sys") / folder).iterdir())]:
            for value in _VALUES:
                try:
                    before = host.sysctl(path)
                    host.set_sysctl(path, value)
                except OSError:  # not to be read or written, or no such value
                    continue
                tried += 1
                try:
                    await await_connected(network, host, pods)
                except Exception as error:
                    raise AssertionError(f"with {path} = {value}") from error
                host.set_sysctl(path, before)
    assert tried > 100


async def test_check_sees_what_was_changed_later(network: HostNetwork, host: Netns, pod: Netns) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    host.set_sysctl(f"net/ipv4/conf/{plan.host.name}/forwarding", "0")
    with pytest.raises(PodCheckError, match="forwarding = 1"):
        await network.check_pod(plan, pod.path)
