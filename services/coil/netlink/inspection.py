"""Compares a pod's network with its plan. Runs in a worker's thread, in the host's namespace, and changes
nothing.

A veth that Coil's Go program has made, before this one took its place, is another than the plan's and as good: it has
hardware addresses that the kernel drew, gateways of its own and no permanent neighbours. Of such a veth only that is
asked for without which no packet reaches the pod.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from coil.kernel.link import Link, LinkName, LinkState
from coil.netlink.address_message import dump_addresses, parse_address
from coil.netlink.connection import Connection
from coil.netlink.error import PodCheckError
from coil.netlink.link_table import find_link
from coil.netlink.namespace import Namespace
from coil.netlink.neighbour_message import dump_neighbours, parse_neighbour
from coil.netlink.route_message import dump_routes, parse_route
from coil.netlink.sysctl import missing_sysctls
from coil.podnet.plan import LinkEnd, PodPlan


def check(plan: PodPlan, pod_netns: Namespace, *, home: Namespace) -> None:
    """Compare both ends with the plan. Raises PodCheckError that names everything missing; what is there in
    addition is fine.
    """
    with ExitStack() as stack:
        host = stack.enter_context(Connection())
        with pod_netns.entered(home):
            pod = stack.enter_context(Connection())
        plan = _adapted(plan, find_link(plan.host.name, host), find_link(plan.pod.name, pod))
        missing = _missing(plan.host, plan.mtu, host)
        with pod_netns.entered(home):
            missing += (f"{thing} (in the pod)" for thing in _missing(plan.pod, plan.mtu, pod))
    if missing:
        raise PodCheckError(tuple(missing))


def _adapted(plan: PodPlan, host: Link | None, pod: Link | None) -> PodPlan:
    """The plan, or what is to be asked of the links instead if they are another program's."""
    # Ours have the plan's addresses; one that somebody changed leaves the other, and is missed.
    if host is None or pod is None or host.mac == plan.host.mac or pod.mac == plan.pod.mac:
        return plan
    return replace(
        plan,
        mtu=host.mtu,
        host=replace(plan.host, mac=host.mac or plan.host.mac, addresses=(), sysctls=()),
        pod=replace(plan.pod, mac=pod.mac or plan.pod.mac, routes=(), neighbours=(), sysctls=()),
    )


def _missing(end: LinkEnd, mtu: int, connection: Connection) -> list[str]:
    link = find_link(end.name, connection)
    if link is None:
        return [f"link {end.name}"]
    missing: list[str] = []
    if link.state is not LinkState.UP:
        missing.append(f"link {end.name} up")
    if link.mtu != mtu:
        missing.append(f"MTU {mtu} on {end.name} (it is {link.mtu})")
    if link.mac != end.mac:
        missing.append(f"hardware address {end.mac} on {end.name} (it is {link.mac})")
    if link.alias != end.alias:
        missing.append(f"alias {end.alias!r} on {end.name} (it is {link.alias!r})")
    names = {link.index: link.name}
    actual: set[object] = set()
    families = {address.family for address in end.addresses} | {route.family for route in end.routes}
    for family in families:
        actual |= _parsed(connection.dump(dump_addresses(family)), parse_address, names)
        actual |= _parsed(connection.dump(dump_neighbours(family)), parse_neighbour, names)
        for table in {route.table for route in end.routes}:
            actual |= _parsed(connection.dump(dump_routes(family, table)), parse_route, names)
    wanted = (*end.addresses, *end.neighbours, *end.routes)
    missing += (str(thing) for thing in wanted if thing not in actual)
    missing += (f"{sysctl.path} = {sysctl.value}" for sysctl in missing_sysctls(end.sysctls))
    return missing


def _parsed(
    bodies: list[bytes], parse: Callable[[bytes, dict[int, LinkName]], object], names: dict[int, LinkName]
) -> set[object]:
    return {thing for body in bodies if (thing := parse(body, names)) is not None}
