"""One pod's veth: made whole or not at all, checked, and taken away. Runs in a worker's thread, in the host's
namespace.

Making it takes three datagrams: the veth with both its ends (in the pod's namespace), then everything on the
host's end, then everything on the pod's. Deleting the veth deletes every address, route and neighbour that
hangs on either end, so that is the whole undo, at every step. Until the last step is done, the
host's end carries a mark (`link_group`) by which the undo is made up for after a crash.
"""

import errno
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from coil.kernel.link import Link, LinkName, LinkState, MacAddress
from coil.netlink import link_group
from coil.netlink.address_message import (
    dump_addresses,
    dump_neighbours,
    new_address,
    new_neighbour,
    parse_address,
    parse_neighbour,
)
from coil.netlink.connection import Connection
from coil.netlink.error import (
    KernelError,
    LinkExistsError,
    NamespaceError,
    NetlinkError,
    PodCheckError,
)
from coil.netlink.link_message import (
    delete_link,
    get_link,
    new_veth,
    parse_link,
    set_alias,
    set_group,
    set_up,
)
from coil.netlink.namespace import Namespace
from coil.netlink.request import Request
from coil.netlink.route_message import dump_routes, new_route, parse_route
from coil.netlink.sysctl import apply_sysctls, missing_sysctls
from coil.podnet.plan import LinkEnd, PodPlan

_CARRIER_PAUSES = [0.001 * 1.5**attempt for attempt in range(18)]
"""Seconds between looks at a link that has no carrier yet: three seconds in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedPod:
    """What was made: both ends, by name and index, and the path-independent facts that a CNI result needs."""

    host_name: LinkName
    host_index: int
    host_mac: MacAddress
    pod_name: LinkName
    pod_index: int
    pod_mac: MacAddress


def attach(plan: PodPlan, pod_netns: Namespace, *, home: Namespace) -> AttachedPod:
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
            apply_sysctls(plan.host.sysctls)
            host.apply(_configure(plan.host, pod_link.peer_index))
            with pod_netns.entered(home):
                apply_sysctls(plan.pod.sysctls)
            pod.apply(_configure(plan.pod, pod_link.index))
            for end, connection in ((plan.host, host), (plan.pod, pod)):
                _await_carrier(end.name, connection)
            host.apply((set_group(plan.host.name, link_group.DEFAULT),))
        except BaseException:
            detach(plan.host.name, connection=host)
            raise
    return AttachedPod(
        host_name=plan.host.name,
        host_index=pod_link.peer_index,
        host_mac=plan.host.mac,
        pod_name=plan.pod.name,
        pod_index=pod_link.index,
        pod_mac=plan.pod.mac,
    )


def _create_veth(plan: PodPlan, *, host: Connection, pod: Connection, home: Namespace) -> None:
    veth = new_veth(
        plan.pod.name,
        plan.pod.mac,
        mtu=plan.mtu,
        peer=plan.host.name,
        peer_mac=plan.host.mac,
        peer_group=link_group.UNFINISHED,
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


def _await_carrier(name: LinkName, connection: Connection) -> None:
    """Wait until packets can leave by the link, which is later than it coming up.

    The end that came up first got its carrier when the second did, but the kernel starts its transmit queue
    from a work item (net/core/link_watch.c) and drops packets until then. Since Linux 6.8, asking for the
    link runs that item at once; before, it takes between some microseconds and a second.
    """
    for pause in _CARRIER_PAUSES:
        if parse_link(connection.get(get_link(name))).carrier:
            return
        time.sleep(pause)
    raise NetlinkError(f"link {name} did not get a carrier")


def find_link(name: LinkName, connection: Connection) -> Link | None:
    """The link of that name, or None."""
    try:
        return parse_link(connection.get(get_link(name)))
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return None
        raise


def detach(name: LinkName, *, connection: Connection) -> None:
    """Delete the host's end and with it everything. No such link is success."""
    for error in connection.submit((delete_link(name),)):
        if error.errno != errno.ENODEV:
            raise error


def check(plan: PodPlan, pod_netns: Namespace, *, home: Namespace) -> None:
    """Compare both ends with the plan. Raises PodCheckError that names everything missing; what is there in
    addition is fine.
    """
    with ExitStack() as stack:
        host = stack.enter_context(Connection())
        missing = _missing(plan.host, plan.mtu, host)
        with pod_netns.entered(home):
            pod = stack.enter_context(Connection())
            missing += (f"{thing} (in the pod)" for thing in _missing(plan.pod, plan.mtu, pod))
    if missing:
        raise PodCheckError(tuple(missing))


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
    for family in {address.family for address in end.addresses}:
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
