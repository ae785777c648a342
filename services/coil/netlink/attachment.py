"""One pod's veth: made whole or not at all, compared with its plan, and taken away. Runs in a worker's thread, in the
host's namespace.

Making it takes three datagrams: the veth with both its ends (in the pod's namespace), then everything on the
host's end, then everything on the pod's. Deleting the veth deletes every address, route and neighbour that
hangs on either end, so that is the whole undo, at every step. Until the last step is done, the host's end
carries a mark (`LinkGroup.UNFINISHED`) by which the undo is made up for after a crash.

A comparison changes nothing. A veth that Coil's Go program made, before this one took its place, differs from the plan
and is as good: it has hardware addresses that the kernel drew, gateways of its own and no permanent neighbours. Such a
veth is only checked for what packets need to reach the pod.
"""

import errno
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace

from coil.kernel.link import Link, LinkGroup, LinkName, LinkState, Neighbour
from coil.netlink.address import dump_addresses, new_address, parse_address
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, LinkExistsError, NamespaceError, PodCheckError
from coil.netlink.link import (
    delete_link,
    find_link,
    get_link,
    new_veth,
    parse_link,
    set_alias,
    set_group,
    set_up,
)
from coil.netlink.namespace import Namespace
from coil.netlink.neighbour import dump_neighbours, get_neighbour, new_neighbour, parse_neighbour, put_neighbour
from coil.netlink.readiness import await_carrier, await_local
from coil.netlink.route import dump_routes, new_route, parse_route
from coil.netlink.sysctl import apply_sysctls, missing_sysctls
from coil.netlink.wire import Request
from coil.podnet.plan import LinkEnd, PodPlan


def attach(plan: PodPlan, pod_netns: Namespace, *, home: Namespace) -> None:
    """Make everything in `plan`. Raises a NetlinkError, and then nothing of it exists, in neither namespace."""
    if pod_netns.is_same(home):
        raise NamespaceError(pod_netns.path, "is the node's own")
    with ExitStack() as stack:
        host = stack.enter_context(Connection())
        with pod_netns.entered(home):
            pod = stack.enter_context(Connection())
        _create_veth(plan, host=host, pod=pod, home=home)
        try:
            # The pod's end knows the index of the host's: veth are made as a pair.
            pod_link = parse_link(pod.get(get_link(plan.pod.name)))
            # Most of them are so already, and a look does not wait for the lock of all links, as writing does.
            apply_sysctls(missing_sysctls(plan.host.sysctls))
            host.apply(_configure(plan.host, pod_link.peer_index))
            with pod_netns.entered(home):
                apply_sysctls(plan.pod.sysctls)
            pod.apply(_configure(plan.pod, pod_link.index))
            _await_ready(plan.host, pod_link.peer_index, host)
            _await_ready(plan.pod, pod_link.index, pod)
            host.apply((set_group(plan.host.name, plan.host.group),))
        except BaseException:
            detach(plan.host.name, connection=host)
            raise


def _create_veth(plan: PodPlan, *, host: Connection, pod: Connection, home: Namespace) -> None:
    veth = new_veth(
        plan.pod.name,
        plan.pod.mac,
        mtu=plan.mtu,
        peer=plan.host.name,
        peer_mac=plan.host.mac,
        peer_group=LinkGroup.UNFINISHED,
        peer_netns=home.fileno(),
    )
    try:
        pod.apply((veth,))
    except KernelError as error:
        if error.errno != errno.EEXIST:
            raise
        where = [
            f"{end.name} in the {place}"
            for end, connection, place in ((plan.host, host, "host"), (plan.pod, pod, "pod"))
            if find_link(end.name, connection) is not None
        ]
        raise LinkExistsError(f"{error}: there is already {' and '.join(where) or 'such a link'}") from None


def _configure(end: LinkEnd, index: int) -> list[Request]:
    """The requests that put everything on one end, in an order that the kernel accepts: routes need a link
    that is up.
    """
    requests = [set_alias(index, end.alias)] if end.alias else []
    requests.append(set_up(index))
    requests += (new_address(address, index) for address in end.addresses)
    requests += (new_neighbour(neighbour, index) for neighbour in end.neighbours)
    requests += (new_route(route, index) for route in end.routes)
    return requests


def _await_ready(end: LinkEnd, index: int, connection: Connection) -> None:
    await_carrier(end.name, connection)
    for address in end.addresses:
        await_local(address, index, connection)


def detach(name: LinkName, *, connection: Connection) -> None:
    """Delete the host's end and with it everything. No such link is success."""
    connection.apply((delete_link(name),), tolerate={errno.ENODEV})


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


def ensure_neighbours(neighbours: Collection[Neighbour], connection: Connection) -> int:
    """Have these permanent neighbours in the connection's namespace; how many were missing, or were something else. A
    link that is gone needs none. Idempotent. Raises KernelError.
    """
    indices = {
        name: link.index for name in {each.device for each in neighbours} if (link := find_link(name, connection))
    }
    missing = [
        each
        for each in neighbours
        if each.device in indices and not _has_neighbour(each, indices[each.device], connection)
    ]
    requests = [put_neighbour(each, indices[each.device]) for each in missing]
    connection.apply(requests, tolerate={errno.ENODEV})
    return len(missing)


def _has_neighbour(neighbour: Neighbour, index: int, connection: Connection) -> bool:
    # Each is asked for by itself: how many others there are is the pod's choice.
    try:
        found = connection.get(get_neighbour(neighbour, index))
    except KernelError as error:
        if error.errno == errno.ENOENT:
            return False
        raise
    return parse_neighbour(found, {index: neighbour.device}) == neighbour


def _adapted(plan: PodPlan, host: Link | None, pod: Link | None) -> PodPlan:
    """The plan, or what is to be asked of the links instead if they are another program's."""
    # Ours have the plan's addresses; one that somebody changed leaves the other, and is missed.
    if host is None or pod is None or host.mac == plan.host.mac or pod.mac == plan.pod.mac:
        return plan
    return replace(
        plan,
        mtu=host.mtu,
        host=replace(plan.host, mac=host.mac or plan.host.mac, addresses=(), neighbours=(), sysctls=()),
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
    if link.group != end.group:
        missing.append(f"group {end.group:#x} of {end.name} (it is {link.group:#x})")
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
