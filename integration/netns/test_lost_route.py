"""Routes to pods that somebody removed: what the kernel still tells of the pods, and how the routes come back."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from coil.kernel.family import IPAddress
from coil.kernel.link import Link, LinkName
from coil.kernel.route import Route
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.host import HostNetwork
from coil.netlink.link import read_links as read
from coil.netlink.route import RouteAdditions
from coil.podnet.plan import DEFAULT_POLICY
from integration.netns.netns import Netns, exchange
from integration.netns.plans import DUAL, pod_plan

pytestmark = pytest.mark.kernel

TABLE = str(DEFAULT_POLICY.pod_table)


def own_addresses(pod: Netns, name: str = "eth0") -> set[IPAddress]:
    """What `ip -j` sees in the pod that stands alone and is good beyond the link."""
    link = pod.link(name)
    assert link is not None
    return {
        ip_address(entry["local"])
        for entry in link["addr_info"]
        if entry["scope"] == "global" and entry["prefixlen"] in (32, 128)
    }


def flush(host: Netns) -> None:
    for family in ("-4", "-6"):
        host.ip(family, "route", "flush", "table", TABLE)


def pod_routes(host: Netns) -> list[dict[str, Any]]:
    return [*host.read("route", "show", "table", TABLE), *host.read("-6", "route", "show", "table", TABLE)]


# --- what addresses a pod has


@pytest.mark.parametrize("families", [DUAL, ("ipv4",), ("ipv6",)])
async def test_the_pods_addresses_are_read_from_the_hosts_side(
    network: HostNetwork, pod: Netns, families: tuple[str, ...]
) -> None:
    plan = pod_plan(families=families)
    await network.attach_pod(plan, pod.path)
    expected = tuple(assignment.address for assignment in plan.assignments)
    assert await network.pod_addresses([plan.host.name]) == {plan.host.name: expected}
    assert own_addresses(pod) == set(expected)


async def test_many_pods_are_told_apart_though_their_links_have_the_same_index(
    network: HostNetwork, host: Netns, new_netns: Callable[[], Netns]
) -> None:
    pods = {pod_plan(number): new_netns() for number in range(1, 6)}
    for plan, pod in pods.items():
        await network.attach_pod(plan, pod.path)
    names = [plan.host.name for plan in pods]
    found = await network.pod_addresses([*names, LinkName("veth-of-nobody")])
    assert {name: set(addresses) for name, addresses in found.items()} == {
        plan.host.name: own_addresses(pod) for plan, pod in pods.items()
    }
    assert await network.pod_addresses(names[:1]) == {names[0]: found[names[0]]}


async def test_what_the_pod_added_comes_last_and_what_is_no_single_address_not_at_all(
    network: HostNetwork, pod: Netns
) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    for address in ("10.0.0.1/32", "10.0.0.0/32", "192.0.2.1/24", "fd00::1/128", "fd00::/128", "fd01::1/64"):
        pod.ip("address", "add", address, "dev", "eth0", "nodad")
    found = await network.pod_addresses([plan.host.name])
    first, second = (assignment.address for assignment in plan.assignments)
    late = [ip_address(text) for text in ("10.0.0.1", "10.0.0.0", "fd00::1", "fd00::")]
    assert found == {plan.host.name: (first, *late[:2], second, *late[2:])}
    assert set(found[plan.host.name]) == own_addresses(pod)


async def test_a_link_whose_other_end_is_on_the_host_or_nowhere(network: HostNetwork, host: Netns) -> None:
    host.ip("link", "add", "near", "type", "veth", "peer", "name", "far")
    host.ip("address", "add", "10.0.0.1/32", "dev", "far")
    assert await network.pod_addresses([LinkName("near"), LinkName("far"), LinkName("lo")]) == {
        "near": (ip_address("10.0.0.1"),),
        "far": (),
        "lo": (),
    }


async def test_a_pod_that_goes_while_it_is_looked_at_is_not_mistaken_for_its_successor(
    network: HostNetwork, host: Netns, new_netns: Callable[[], Netns], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of its namespace and the index of its link are the successor's at once."""
    plan, successor = pod_plan(1), pod_plan(2)
    pod, other = new_netns(), new_netns()
    await network.attach_pod(plan, pod.path)
    looks = 0

    def read_links(connection: Connection) -> list[Link]:
        nonlocal looks
        looks += 1
        links = read(connection)
        if looks == 1:
            host.ip("link", "delete", plan.host.name)
            pod.delete()
            asyncio.run_coroutine_threadsafe(network.attach_pod(successor, other.path), loop).result(10)
        return links

    loop = asyncio.get_running_loop()
    monkeypatch.setattr("coil.netlink.address.read_links", read_links)
    assert await network.pod_addresses([plan.host.name]) == {}
    assert looks == 2


async def test_what_the_kernel_would_not_tell_is_an_error_and_no_pod_without_addresses(
    network: HostNetwork, pod: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)

    def read_links(connection: Connection) -> list[Link]:
        return [replace(link, peer_netns=999) if link.name == plan.host.name else link for link in read(connection)]

    monkeypatch.setattr("coil.netlink.address.read_links", read_links)
    with pytest.raises(NetlinkError, match=f"the other end of {plan.host.name} cannot be looked at"):
        await network.pod_addresses([plan.host.name])


# --- putting routes back


async def test_routes_come_back_as_they_were(network: HostNetwork, host: Netns, pod: Netns) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    before = pod_routes(host)
    flush(host)
    assert pod_routes(host) == []
    assert await network.add_routes(plan.host.routes) == RouteAdditions(added=plan.host.routes)
    assert pod_routes(host) == before
    await network.check_pod(plan, pod.path)
    for assignment in plan.assignments:
        exchange(host, pod, assignment.address)


async def test_adding_what_is_there_or_what_has_no_link_is_nothing(
    network: HostNetwork, host: Netns, pod: Netns
) -> None:
    plan, absent = pod_plan(1), pod_plan(2)
    await network.attach_pod(plan, pod.path)
    before = host.state()
    assert await network.add_routes([*plan.host.routes, *absent.host.routes]) == RouteAdditions()
    assert host.state() == before


async def test_who_has_the_place_keeps_it(
    network: HostNetwork, host: Netns, pod: Netns, new_netns: Callable[[], Netns]
) -> None:
    plan, other = pod_plan(1), pod_plan(2)
    await network.attach_pod(plan, pod.path)
    await network.attach_pod(other, new_netns().path)
    flush(host)
    ipv4, ipv6 = plan.host.routes
    host.ip("route", "add", "blackhole", str(ipv4.destination), "table", TABLE)
    host.ip("-6", "route", "add", str(ipv6.destination), "dev", other.host.name, "table", TABLE)
    before = pod_routes(host)
    assert await network.add_routes(plan.host.routes) == RouteAdditions(refused=plan.host.routes)
    assert pod_routes(host) == before


async def test_a_route_that_the_kernel_does_not_take(network: HostNetwork, host: Netns, pod: Netns) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    host.ip("link", "set", plan.host.name, "down")
    with pytest.raises(KernelError, match="Network is down"):
        await network.add_routes(plan.host.routes)
    stray = Route(destination=ip_network("10.0.0.1/32"), device=None, gateway=ip_address("192.0.2.1"), table=116)
    with pytest.raises(KernelError):
        await network.add_routes([stray])
