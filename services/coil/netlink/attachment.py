"""One pod's veth: made whole or not at all, and taken away. Runs in a worker's thread, in the host's
namespace.

Making it takes three datagrams: the veth with both its ends (in the pod's namespace), then everything on the
host's end, then everything on the pod's. Deleting the veth deletes every address, route and neighbour that
hangs on either end, so that is the whole undo, at every step. Until the last step is done, the host's end
carries a mark (`link_group`) by which the undo is made up for after a crash.
"""

import errno
from contextlib import ExitStack
from dataclasses import dataclass

from coil.kernel.link import LinkName, MacAddress
from coil.netlink import link_group
from coil.netlink.address_message import new_address
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, LinkExistsError, NamespaceError
from coil.netlink.link_message import (
    delete_link,
    get_link,
    new_veth,
    parse_link,
    set_alias,
    set_group,
    set_up,
)
from coil.netlink.link_table import find_link
from coil.netlink.namespace import Namespace
from coil.netlink.neighbour_message import new_neighbour
from coil.netlink.readiness import await_carrier, await_local
from coil.netlink.request import Request
from coil.netlink.route_message import new_route
from coil.netlink.sysctl import apply_sysctls
from coil.podnet.plan import LinkEnd, PodPlan


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
            _await_ready(plan.host, pod_link.peer_index, host)
            _await_ready(plan.pod, pod_link.index, pod)
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


def _await_ready(end: LinkEnd, index: int, connection: Connection) -> None:
    await_carrier(end.name, connection)
    for address in end.addresses:
        await_local(address, index, connection)


def detach(name: LinkName, *, connection: Connection) -> None:
    """Delete the host's end and with it everything. No such link is success."""
    connection.apply((delete_link(name),), tolerate={errno.ENODEV})
