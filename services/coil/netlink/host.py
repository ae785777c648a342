"""`HostNetwork`: what coild asks of the kernel, without waiting for it on the event loop.

Every method runs a job in a worker's thread. Pods are attached one after the other, in a thread for nothing
else: the kernel makes links one at a time, and threads that compete for its lock and the interpreter's are
slower together than one alone (by a third, and the slowest by much more). Reading has a thread, tables of
routes, which may be long, have one, and deletions have theirs.
"""

import asyncio
import errno
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NewType, TypeVar

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import Link, LinkGroup, LinkName, MacAddress, Neighbour, Sysctl
from coil.kernel.route import Route, RouteChanges
from coil.kernel.rule import Rule, RuleChanges
from coil.netlink import attachment, kernel_module, peer_namespace, route, rule
from coil.netlink.address import read_peer_addresses
from coil.netlink.connection import Connection
from coil.netlink.error import NamespaceError, NetlinkError
from coil.netlink.forwarding import ensure_forwarding
from coil.netlink.link import read_links, set_group
from coil.netlink.monitor import LinkWatch, open_event_socket
from coil.netlink.namespace import Namespace
from coil.netlink.node_sysctl import NodeSysctls
from coil.netlink.node_watch import Interest, Listener, NodeWatch
from coil.netlink.peer_namespace import PeerNamespaces
from coil.netlink.removal import MAX_BATCHES, LinkRemoval, remove_unfinished
from coil.netlink.route import RouteAdditions
from coil.netlink.sysctl import apply_sysctls, ensure_sysctls
from coil.netlink.worker import Worker, open_worker
from coil.podnet.host_link import PodAlias, parse_alias
from coil.podnet.plan import PodPlan

NetnsPath = NewType("NetnsPath", Path)
"""A path that names a network namespace: a bind mount below /run/netns, or /proc/<pid>/ns/net."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLink:
    """The host end of a pod's veth, as found in the kernel."""

    name: LinkName
    index: int
    mac: MacAddress | None
    alias: PodAlias
    group: int = LinkGroup.NONE


class HostNetwork:
    """The network of the host's namespace and of the pods attached to it. An async context manager.

    The host's namespace is that of the process, or `netns` for tests. Entering the context removes what a
    crash left of pods in the making: one process at a time may have this context on a namespace. Leaving the
    context waits for running jobs and leaves the kernel's state as it is.
    """

    def __init__(self, netns: NetnsPath | None = None, *, sysctls: NodeSysctls | None = None) -> None:
        self._netns = netns
        self._sysctls = sysctls or NodeSysctls()
        self._stack = AsyncExitStack()
        self._home: Namespace
        self._attaching: Worker
        self._reading: Worker
        self._routing: Worker
        self._removal: LinkRemoval
        self._peers = PeerNamespaces()  # used in the one thread of `_reading`

    async def __aenter__(self) -> "HostNetwork":
        async with AsyncExitStack() as stack:
            home = Namespace(self._netns) if self._netns is not None else Namespace.current()
            self._home = stack.enter_context(home)
            self._attaching = await stack.enter_async_context(open_worker("pod-attach", self._netns))
            self._reading = await stack.enter_async_context(open_worker("pod-read", self._netns))
            self._routing = await stack.enter_async_context(open_worker("routes", self._netns))
            detaching = await stack.enter_async_context(open_worker("pod-detach", self._netns, threads=MAX_BATCHES))
            await self._reading.run(remove_unfinished)
            watch = LinkWatch(await self._reading.run(open_event_socket))
            stack.callback(watch.close)
            self._removal = LinkRemoval(detaching, watch)
            stack.push_async_callback(self._removal.aclose)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def pod_links(self) -> list[PodLink]:
        """The host ends of all pods' veth, known by their alias."""
        return [
            PodLink(name=link.name, index=link.index, mac=link.mac, alias=alias, group=link.group)
            for link in await self._connected(read_links)
            if (alias := parse_alias(link.alias)) is not None
        ]

    async def mark_pod_links(self, names: Collection[LinkName]) -> None:
        """Put the host ends into the group of pods' links. Idempotent; a link that is gone is fine."""
        marks = [set_group(name, LinkGroup.POD) for name in names]
        await self._connected(lambda connection: connection.apply(marks, tolerate={errno.ENODEV}))

    async def pod_routes(self, table: int) -> list[Route]:
        """The routes of one table, of both families and all protocols."""
        return await self._connected(lambda connection: route.read_routes(table, connection))

    async def pod_addresses(self, links: Collection[LinkName]) -> dict[LinkName, tuple[IPAddress, ...]]:
        """The addresses at the pod's end of each veth, those for the link left out; in each family what was added first
        comes first.

        A link that is gone is not in the answer. Raises NetlinkError where the kernel would not tell.
        """
        return await self._connected(lambda connection: read_peer_addresses(links, connection))

    async def add_routes(self, routes: Collection[Route]) -> RouteAdditions:
        """Add each route to what is there, and replace nothing: who has the place keeps it, and the route is refused.

        Idempotent: a route that is there is fine, and so is one whose link is gone. Raises NetlinkError for the first
        that the kernel did not take.
        """
        return await self._connected(lambda connection: route.add_routes(routes, connection))

    async def uplink(self, node_addresses: Collection[IPAddress] = ()) -> Link:
        """The link that has one of the node's addresses, or else the one its default route leaves by; its
        `mtu` is for pods.

        Raises NetlinkError if there is neither.
        """
        return await self._connected(lambda connection: route.find_uplink(node_addresses, connection))

    async def ensure_sysctls(self, sysctls: Collection[Sysctl]) -> None:
        """Write the sysctls that say something else, in the host's namespace. Idempotent. Raises NetlinkError that says
        what to do.
        """
        await self._reading.run(ensure_sysctls, sysctls)

    async def ensure_forwarding(self, families: Collection[Family]) -> int:
        """Have the node forward packets of the families, and go on to take default routes from routers. Idempotent.

        Returns how many settings were otherwise. Raises NetlinkError that says what to do.
        """
        return await self._reading.run(ensure_forwarding, families, self._sysctls)

    async def watch_removals(self, listener: Listener) -> None:
        """Tell of rules and routes that go from the host's namespace, and of forwarding, until the context is left."""
        events = await self._reading.run(open_event_socket)
        watch = NodeWatch(events, None, listener, interest=Interest.REMOVALS)
        self._stack.callback(watch.close)

    async def ensure_rules(self, rules: Collection[Rule]) -> RuleChanges:
        """Make each rule exist once, and no other of the same protocols. Idempotent; a cancelled call may
        still take effect.
        """
        return await self._connected(lambda connection: rule.ensure_rules(rules, connection))

    async def sync_routes(self, *, table: int, protocol: int, wanted: Collection[Route]) -> RouteChanges:
        """Make `wanted` the routes of `protocol` in `table`; leave those of other protocols alone.

        A destination that is wanted before and after has a route at every instant. Idempotent; a cancelled call
        may still take effect. Raises NetlinkError for the first route that could not be changed, after trying
        the others. Such calls take turns.
        """
        return await self.sync_planned_routes(table=table, protocol=protocol, plan=lambda _others: wanted)

    async def sync_planned_routes(
        self, *, table: int, protocol: int, plan: Callable[[list[Route]], Collection[Route]]
    ) -> RouteChanges:
        """The same with what `plan` makes of the routes that other protocols have in the table.

        `plan` is called once, in a worker's thread, while the event loop goes on.
        """

        def job() -> RouteChanges:
            with Connection() as connection:
                return route.sync_routes(table=table, protocol=protocol, plan=plan, connection=connection)

        return await self._routing.run(job)

    async def attach_pod(self, plan: PodPlan, netns: NetnsPath) -> None:
        """Make the veth of `plan` between the host and the namespace at `netns`. All or nothing.

        When it returns, connections both ways work. Raises NamespaceError, LinkExistsError (not idempotent:
        what is left of an earlier attempt has to be detached first), BusyError, or NetlinkError for anything
        the kernel refused; then nothing is left. Nothing is left after a cancellation either, which is raised
        some milliseconds late for that; if the undo itself was refused, the CancelledError has that as its
        cause.
        """
        job = self._attaching.submit(self._attach, plan, netns)
        try:
            await asyncio.shield(asyncio.wrap_future(job))
        except asyncio.CancelledError as cancelled:
            if not job.cancel():
                try:
                    await _finish(self._undo(job, plan.host.name))
                except NetlinkError as error:
                    raise cancelled from error
            raise

    def _attach(self, plan: PodPlan, netns: NetnsPath) -> None:
        # The first pod of a family makes the node a router of it.
        ensure_forwarding({route.family for route in plan.host.routes}, self._sysctls)
        with Namespace(netns) as pod_netns:
            attachment.attach(plan, pod_netns, home=self._home)

    async def _undo(self, job: Future[None], host_name: LinkName) -> None:
        try:
            await asyncio.wrap_future(job)
        except Exception:
            return  # it undid itself; the link, if there is one, is somebody else's
        await self.detach_pod(host_name)

    async def check_pod(self, plan: PodPlan, netns: NetnsPath) -> None:
        """Compare the kernel with `plan`. Raises PodCheckError naming what is missing, or NamespaceError.
        Changes nothing.
        """

        def check() -> None:
            with Namespace(netns) as pod_netns:
                attachment.check(plan, pod_netns, home=self._home)

        await self._reading.run(check)

    async def ensure_modules(self, names: Sequence[str]) -> None:
        """Have modules in the kernel. Idempotent. Raises NetlinkError that says what to do; see `kernel_module`."""
        await self._reading.run(kernel_module.ensure_modules, names)

    async def ensure_pod_sysctls(self, sysctls: Collection[Sysctl], netns: NetnsPath | Namespace) -> None:
        """Write the sysctls in the namespace of a pod. Idempotent. Raises NamespaceError or NetlinkError.

        An open namespace must stay open until the call is done; a cancelled one may still need it.
        """

        def write(pod_netns: Namespace) -> None:
            if pod_netns.is_same(self._home):
                raise NamespaceError(pod_netns.path, "is the node's own")
            with pod_netns.entered(self._home):
                apply_sysctls(sysctls)

        def job() -> None:
            if isinstance(netns, Namespace):
                write(netns)
            else:
                with Namespace(netns) as opened:
                    write(opened)

        await self._reading.run(job)

    async def name_host_end(self, ifname: LinkName, alias: PodAlias, netns: NetnsPath) -> LinkName | None:
        """Give the host's end of a pod's interface an alias; see `peer_namespace`."""

        def name() -> LinkName | None:
            with Namespace(netns) as pod_netns:
                self._peers.forget(alias)
                return peer_namespace.name_host_end(ifname, alias, pod_netns, home=self._home)

        return await self._reading.run(name)

    async def pods_with_link(self, names: Collection[LinkName]) -> frozenset[PodAlias]:
        """The pods, by the alias of their veth, in whose namespaces there is a link of one of the names.

        One dump of links for all pods. Raises NetlinkError.
        """
        return await self._connected(lambda connection: peer_namespace.pods_with_link(names, connection))

    async def pods_in(self, numbers: Collection[int]) -> frozenset[PodAlias]:
        """The pods, by the alias of their veth, whose namespaces have these numbers here. Raises NetlinkError."""
        links = await self._connected(read_links)
        found = (parse_alias(link.alias) for link in links if link.peer_netns in numbers)
        return frozenset(alias for alias in found if alias is not None)

    async def ensure_neighbours(self, neighbours: Collection[Neighbour]) -> int:
        """Have the permanent neighbours in the host's namespace; how many were missing. A link that is gone needs none.
        Idempotent.
        """
        return await self._connected(lambda connection: attachment.ensure_neighbours(neighbours, connection))

    async def ensure_pod_neighbours(self, neighbours: Collection[Neighbour], alias: PodAlias) -> int:
        """Have the permanent neighbours in the namespace of the pod whose veth has this alias; how many were missing.

        Idempotent. A pod that is gone needs none. Raises NetlinkError.
        """

        def job() -> int:
            with Connection() as connection:
                pod_netns = self._peers.open_pod(alias, connection)
            if pod_netns is None:
                return 0
            with pod_netns, pod_netns.entered(self._home), Connection() as pod:
                return attachment.ensure_neighbours(neighbours, pod)

        return await self._reading.run(job)

    async def open_pod_namespace(self, alias: PodAlias) -> Namespace | None:
        """The namespace of the pod whose veth has this alias; the caller closes it. None if there is no such veth."""
        job = self._reading.submit(self._open_pod_namespace, alias)
        try:
            return await asyncio.shield(asyncio.wrap_future(job))
        except asyncio.CancelledError:
            job.add_done_callback(_close_unwanted)
            job.cancel()
            raise

    def _open_pod_namespace(self, alias: PodAlias) -> Namespace | None:
        with Connection() as connection:
            return self._peers.open_pod(alias, connection)

    async def detach_pod(self, host_name: LinkName) -> None:
        """Delete the veth; when this returns, it and its routes are gone. Idempotent: no such link is
        success.

        A cancelled call takes effect nevertheless. Raises BusyError or NetlinkError.
        """
        await self._removal.remove(host_name)

    async def _connected(self, function: Callable[[Connection], R]) -> R:
        def job() -> R:
            with Connection() as connection:
                return function(connection)

        return await self._reading.run(job)


def _close_unwanted(job: Future[Namespace | None]) -> None:
    """Nobody waits for the namespace any more."""
    if not job.cancelled() and job.exception() is None and (namespace := job.result()) is not None:
        namespace.close()


async def _finish(work: Coroutine[object, object, None]) -> None:
    """Wait for `work` to its end, through any further cancellation; for callers that raise one afterwards in
    any case.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    task.result()
