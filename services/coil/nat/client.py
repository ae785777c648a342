"""`ClientNetwork`: the client's end of the tunnels, in the namespaces of any number of pods.

Place in the flow: coild tells what a pod is to have as a `ClientSpec`; a worker's thread enters the pod's namespace,
reads, plans (`coil.egress.client_plan`), and applies what differs (`sync_client`).

The order, in which no packet finds half a way: what receives (ports, flow-based links), tunnels, each with its routes,
marks, the other routes, rules; then what is no longer wanted goes, the other way round. A packet of a flow that does
not change meets the same tunnel before, during and after.

Invariant: a namespace with anything of ours has a flow-based link, or the sync that could not make it raised. That is
how coild tells after a restart which pods have something (`coil.netlink.peer_namespace.pods_with_link`).

It fails closed: a destination whose tunnel the kernel refuses is unreachable until a later sync makes the tunnel,
unless the specification says `fail_open`.
"""

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from coil.egress.client_plan import (
    ClientPlan,
    GatewayProblem,
    client_rules,
    deaf_to_routers,
    plan_client,
    unreachable,
)
from coil.egress.gateway import ClientSpec, Replies, TunnelPolicy
from coil.egress.reply_plan import CLIENT_TABLE, REPLY_PRIORITY
from coil.egress.router_plan import PEER_PRIORITY
from coil.kernel.family import Family
from coil.kernel.link import LinkName, LinkState
from coil.kernel.route import Route, RouteType
from coil.kernel.rule import Rule
from coil.kernel.tunnel import (
    FALLBACK_NAMES,
    FOU_DUMMY,
    CatchAll,
    FouPort,
    Tunnel,
    TunnelChanges,
    catch_all,
    diff_tunnels,
    tunnel_name,
)
from coil.netlink.connection import Connection
from coil.netlink.error import NetlinkError
from coil.netlink.fou import ensure_fou_port, list_fou_ports, remove_fou_port
from coil.netlink.host import NetnsPath
from coil.netlink.link import rename_link
from coil.netlink.namespace import Namespace
from coil.netlink.route import add_routes, as_uplink, read_routes, read_uplink_routes, sync_routes
from coil.netlink.rule import read_rules, sync_rules
from coil.netlink.sysctl import apply_sysctls, missing_sysctls
from coil.netlink.tunnel import (
    TunnelTable,
    change_tunnel,
    create_tunnel,
    delete_tunnels,
    ensure_catch_alls,
    open_tunnel,
    read_tunnels,
    rename_fallbacks,
)
from coil.netlink.worker import NamespaceExecutor, open_worker
from coil.nft.netfilter import NftError
from coil.nft.table_sync import delete_table, sync_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientChanges:
    """What a sync did to the namespace, in words and in its order; false if it touched nothing.

    `problems` are what of the specification cannot be; the rest of it was made nevertheless.
    """

    made: tuple[str, ...] = ()
    problems: tuple[GatewayProblem, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.made)


def sync_client(spec: ClientSpec) -> ClientChanges:
    """Make the namespace of the calling thread what `spec` says. Idempotent; what is right is not touched.

    Raises the first of what went wrong, after having tried everything else.
    """
    with Connection() as connection:
        rules = read_rules(connection)
        if _is_router(rules, spec.policy):
            if spec.is_empty:
                return ClientChanges()
            # Both ends of tunnels use the same table and names: a client's would take a router's for its own, and
            # delete them.
            raise NetlinkError("this is the namespace of a router, which cannot be a client, too")
        found = read_tunnels(connection)
        plan = _plan(spec, found, connection)
        if not plan.rules and not _is_client(rules, found, spec.policy):
            return ClientChanges(problems=plan.problems)
        sync = _ClientSync(plan, spec, rules, found, connection)
        sync.run()
    for error in sync.errors:
        raise error
    return ClientChanges(made=tuple(sync.made), problems=plan.problems)


def _is_router(rules: list[Rule], policy: TunnelPolicy) -> bool:
    peers = (PEER_PRIORITY, policy.public_table, policy.protocol)
    return any(rule.iif is not None and (rule.priority, rule.table, rule.protocol) == peers for rule in rules)


def _plan(spec: ClientSpec, found: TunnelTable, connection: Connection) -> ClientPlan:
    if spec.is_empty:
        return ClientPlan()
    name = spec.policy.uplink
    routes: tuple[Route, ...] = ()
    present: list[Route] = []
    if spec.replies is Replies.WHERE_THEY_CAME_FROM:
        routes = read_uplink_routes(name, connection)
    if spec.block_unclaimed:
        tables = (spec.policy.private_table, spec.policy.public_table)
        present = [route for table in tables for route in read_routes(table, connection)]
    return plan_client(spec, as_uplink(name, found.links.get(name), routes), present)


def _is_client(rules: list[Rule], found: TunnelTable, policy: TunnelPolicy) -> bool:
    """Whether anything in the namespace is ours."""
    own_links = {tunnel_name(tunnel.remote) for tunnel in found.tunnels} | {catch_all(family).name for family in Family}
    return bool(found.links.keys() & own_links) or any(map(client_rules(policy).covers, rules))


class _ClientSync:
    """One sync: a step that fails is remembered in `errors`, and the others are tried."""

    def __init__(
        self, plan: ClientPlan, spec: ClientSpec, rules: list[Rule], found: TunnelTable, connection: Connection
    ) -> None:
        self._plan = plan
        self._policy = spec.policy
        self._fail_open = spec.fail_open
        self._rules = rules
        self._found = found
        self._connection = connection
        self._own = [tunnel for tunnel in found.tunnels if tunnel.name == tunnel_name(tunnel.remote)]
        self._ports: frozenset[FouPort] = frozenset()
        self._refused: set[LinkName] = set()  # tunnels that the kernel did not make
        self.made: list[str] = []
        self.errors: list[NetlinkError | NftError] = []

    def run(self) -> None:
        changes = diff_tunnels(self._own, self._plan.tunnels)
        self._make_sysctls()
        self._make_receivers()
        self._make_bypasses()
        self._make_tunnels(changes)
        self._sync_marks()
        self._make_routes()
        self._make_rules()
        self._remove_links(changes)
        self._remove_ports()
        if not self._plan.catch_alls:
            self._restore_fallbacks()

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        try:
            yield
        except (NetlinkError, NftError) as error:
            self.errors.append(error)

    def _make_sysctls(self) -> None:
        # Before any link is made, which takes the default. Those that are there may be from before it was set.
        ours: list[Tunnel | CatchAll] = [*self._plan.tunnels, *self._plan.catch_alls]
        present = [link.name for link in ours if link.family is Family.IPV6 and link.name in self._found.links]
        with self._attempt():
            missing = missing_sysctls((*self._plan.sysctls, *deaf_to_routers(present)))
            apply_sysctls(missing)
            self.made += (f"set {sysctl.path} to {sysctl.value}" for sysctl in missing)

    def _make_receivers(self) -> None:
        with self._attempt():
            self._ports = list_fou_ports()
            for port in self._plan.fou_ports:
                if port not in self._ports and ensure_fou_port(port):
                    self.made.append(f"open {port}")
        with self._attempt():
            if ensure_catch_alls(self._plan.catch_alls, self._connection):
                self.made.append("make the flow-based links")
        with self._attempt():
            if self._plan.catch_alls and rename_fallbacks(self._connection):
                self.made.append("rename the fallback links")

    def _make_bypasses(self) -> None:
        # A tunnel's own packets must not find the way into a tunnel: what keeps them out is there first.
        with self._attempt():
            bypasses = [route for route in self._plan.routes if route.type is RouteType.THROW]
            self.made += (f"add {route}" for route in add_routes(bypasses, self._connection).added)

    def _make_tunnels(self, changes: TunnelChanges) -> None:
        for tunnel in changes.creates:
            self._refused.add(tunnel.name)
            with self._attempt():
                index = create_tunnel(tunnel, self._connection)
                # Up, and its routes, in one go: neither is any use without the other.
                open_tunnel(
                    index, [route for route in self._plan.routes if route.device == tunnel.name], self._connection
                )
                self.made.append(f"create {tunnel}")
                self._refused.discard(tunnel.name)
        for tunnel in changes.changes:
            with self._attempt():
                change_tunnel(tunnel, self._connection)
                self.made.append(f"change {tunnel}")
        for tunnel in self._plan.tunnels:
            link = self._found.links.get(tunnel.name)
            if link is not None and link.state is LinkState.DOWN:  # left so by a process that was killed
                with self._attempt():
                    open_tunnel(link.index, (), self._connection)
                    self.made.append(f"open {tunnel}")

    def _sync_marks(self) -> None:
        # The rules of replies tell that there may be a table of marks: they come before it, and go after it. So where
        # there are none, nobody has to load a library to look.
        ours = [rule for rule in self._rules if client_rules(self._policy).covers(rule)]
        table = self._plan.nft_table
        with self._attempt():
            if table is not None:
                self._sync_rules([*ours, *(rule for rule in self._plan.rules if rule.priority == REPLY_PRIORITY)])
                if sync_table(table):
                    self.made.append(f"write {table}")
            elif any(rule.priority == REPLY_PRIORITY for rule in ours) and delete_table(CLIENT_TABLE):
                self.made.append(f"delete table {CLIENT_TABLE}")

    def _make_routes(self) -> None:
        wanted: dict[int, list[Route]] = {self._policy.private_table: [], self._policy.public_table: []}
        claim = client_rules(self._policy)
        for rule in self._rules:
            if claim.covers(rule) and rule.priority == REPLY_PRIORITY:
                wanted[rule.table] = []  # of a link that was the uplink
        for route in self._plan.routes:
            wanted.setdefault(int(route.table), []).append(self._without_refused(route))
        for table, routes in wanted.items():
            with self._attempt():
                changes = sync_routes(
                    table=table,
                    protocol=self._policy.protocol,
                    plan=lambda _others, routes=routes: routes,  # type: ignore[misc]
                    connection=self._connection,
                )
                self.made += (f"put {route}" for route in (*changes.replaces, *changes.adds))
                self.made += (f"delete {route}" for route in (*changes.clears, *changes.deletes))

    def _without_refused(self, route: Route) -> Route:
        """The route, unless its tunnel is one that the kernel did not make."""
        if self._fail_open or route.device not in self._refused:
            return route
        return unreachable(route.destination, table=route.table, protocol=route.protocol)

    def _make_rules(self) -> None:
        with self._attempt():
            self._sync_rules(self._plan.rules)

    def _sync_rules(self, wanted: Sequence[Rule]) -> None:
        changes = sync_rules(wanted, claim=client_rules(self._policy), connection=self._connection)
        self.made += (f"add {rule}" for rule in changes.adds)
        self.made += (f"delete {rule}" for rule in changes.deletes)

    def _remove_links(self, changes: TunnelChanges) -> None:
        names = [tunnel.name for tunnel in changes.deletes]
        names += (
            link.name
            for link in self._found.catch_alls
            if link == catch_all(link.family) and link not in self._plan.catch_alls
        )
        if FOU_DUMMY in self._found.links and not self._plan.fou_ports:
            names.append(FOU_DUMMY)  # a link of Coil in Go, by which that would believe the ports to be open
        if names:
            with self._attempt():
                delete_tunnels(names)
                self.made += (f"delete link {name}" for name in names)

    def _remove_ports(self) -> None:
        ours = {FouPort(family, self._policy.port) for family in Family}
        ours.update(FouPort(tunnel.family, tunnel.port) for tunnel in self._own)
        with self._attempt():
            for port in sorted(self._ports & ours - set(self._plan.fou_ports), key=str):
                if remove_fou_port(port):
                    self.made.append(f"close {port}")

    def _restore_fallbacks(self) -> None:
        for name, ours in FALLBACK_NAMES.items():
            link = self._found.links.get(ours)
            if link is not None:
                with self._attempt():
                    self._connection.apply((rename_link(link.index, name),))
                    self.made.append(f"rename {ours} to {name}")


_THREADS: Final = 4
"""The kernel changes links one at a time, but what it waits for when it deletes them, it waits for in parallel."""


class ClientNetwork:
    """The client's end of the tunnels. An async context manager; leaving it waits for running jobs and leaves the
    kernel's state as it is.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._home: Namespace
        self._executor: NamespaceExecutor

    async def __aenter__(self) -> "ClientNetwork":
        async with AsyncExitStack() as stack:
            self._home = stack.enter_context(Namespace.current())
            worker = await stack.enter_async_context(open_worker("egress-client", threads=_THREADS))
            self._executor = NamespaceExecutor(worker)
            stack.push_async_callback(self._executor.aclose)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def sync(self, spec: ClientSpec, netns: NetnsPath | Namespace) -> ClientChanges:
        """Make the namespace what `spec` says; an empty one leaves nothing of ours in it.

        Idempotent: what is right already is not touched, and what changes does so without a gap for other flows. Calls
        for one namespace take turns, calls for several do not wait for each other. An open `Namespace` stays the
        caller's, who may close it at once, even if the call is cancelled. A call that is cancelled takes effect
        nevertheless.

        Raises NamespaceError, BusyError (nothing was begun), NetlinkError where the kernel refused, where there is no
        uplink, or where the namespace is a router's; NftError. What could be done by then was done, and stays; the next
        call goes on.
        """
        namespace = Namespace(netns if isinstance(netns, Path) else Path(f"/proc/self/fd/{netns.fileno()}"))

        def job() -> ClientChanges:
            with namespace.entered(self._home):
                return sync_client(spec)

        return await self._executor.run(namespace, job)
