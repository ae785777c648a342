"""`RouterNetwork`: the router's end of the tunnels, in one namespace.

Place in the flow: the agent in a router pod sets it up at its start and then adds and removes peers, which are the
addresses of client pods. What is to be is in `coil.egress.router_plan`; the functions are jobs of a worker's thread.

What one peer costs does not depend on how many there are: a tunnel is made, and only where the kernel says that it is
there already is it looked at, by name. The order of a peer's coming is device, up, route.
"""

import errno
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, TypeVar

from coil.egress.gateway import RouterSpec, SourcePort
from coil.egress.router_plan import (
    ROUTER_TABLE,
    NatCounter,
    NatCounterKind,
    counter_name,
    families_of,
    name_is_taken,
    plan_peer_route,
    plan_peers,
    plan_router,
    router_rules,
)
from coil.kernel.family import IPAddress
from coil.kernel.link import Link, LinkName, LinkState, Sysctl
from coil.kernel.route import Route
from coil.kernel.tunnel import Tunnel, tunnel_name
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.fou import ensure_fou_port
from coil.netlink.host import NetnsPath
from coil.netlink.link import set_up
from coil.netlink.namespace import Namespace
from coil.netlink.route import new_route, read_routes, read_uplink
from coil.netlink.rule import sync_rules
from coil.netlink.sysctl import apply_sysctls, missing_sysctls
from coil.netlink.tunnel import (
    change_tunnel,
    create_tunnel,
    delete_tunnels,
    ensure_catch_alls,
    find_tunnels,
    open_tunnel,
    read_tunnels,
    rename_fallbacks,
)
from coil.netlink.worker import Worker
from coil.nft.table_sync import read_counters, sync_table

_REMEDY: Final = (
    "coild writes it when it makes the namespace of a router pod, if it runs with --enable-egress; "
    "otherwise the pod's securityContext.sysctls has to name {name}"
)


def set_up_router(spec: RouterSpec) -> None:
    """Make everything but the peers, and delete what a killed process left of peers in the making. Idempotent."""
    plan = plan_router(spec)
    _ensure_sysctls(plan.sysctls)
    for port in plan.fou_ports:
        ensure_fou_port(port)
    with Connection() as connection:
        ensure_catch_alls(plan.catch_alls, connection)
        rename_fallbacks(connection)
        sync_table(plan.nft_table)
        sync_rules(plan.rules, claim=router_rules(spec.policy), connection=connection)
        complete, unfinished = _read_peers(spec, connection)
    delete_tunnels([tunnel_name(peer) for peer in unfinished - complete])


def _ensure_sysctls(sysctls: Collection[Sysctl]) -> None:
    for sysctl in missing_sysctls(sysctls):
        try:
            apply_sysctls((sysctl,))
        except NetlinkError as error:
            raise NetlinkError(f"{error}; {_REMEDY.format(name=sysctl.path.replace('/', '.'))}") from error


def read_peers(spec: RouterSpec) -> frozenset[IPAddress]:
    """The peers whose tunnel is up and has its route."""
    with Connection() as connection:
        return _read_peers(spec, connection)[0]


def _read_peers(spec: RouterSpec, connection: Connection) -> tuple[frozenset[IPAddress], frozenset[IPAddress]]:
    """Those that are complete, and those that have a tunnel at all."""
    found = read_tunnels(connection)
    routes = frozenset(read_routes(spec.policy.public_table, connection))
    tunnels = [tunnel for tunnel in found.tunnels if tunnel.name == tunnel_name(tunnel.remote)]
    complete = frozenset(
        tunnel.remote
        for tunnel in tunnels
        if found.links[tunnel.name].state is LinkState.UP and plan_peer_route(tunnel.remote, spec.policy) in routes
    )
    return complete, frozenset(tunnel.remote for tunnel in tunnels)


def add_peers(peers: Collection[IPAddress], spec: RouterSpec, source_port: SourcePort) -> None:
    """Make a tunnel and a route for each. Idempotent. Raises the first NetlinkError, after having tried all."""
    with Connection() as connection:
        plan = plan_peers(peers, spec, read_uplink(spec.policy.uplink, connection), source_port)
        routes = {route.device: route for route in plan.routes}
        failures = [NetlinkError(str(refusal)) for refusal in plan.refusals]
        there: list[Tunnel] = []
        for tunnel in plan.tunnels:
            try:
                index = create_tunnel(tunnel, connection)
                open_tunnel(index, (routes[tunnel.name],), connection)
            except KernelError as error:
                if error.errno == errno.EEXIST:
                    there.append(tunnel)
                else:
                    failures.append(error)
            except NetlinkError as error:
                failures.append(error)
        failures += _mend(there, routes, connection)
    for failure in failures:
        raise failure


def _mend(
    tunnels: Sequence[Tunnel], routes: dict[LinkName | None, Route], connection: Connection
) -> list[NetlinkError]:
    """Make those tunnels right whose names are taken: by themselves, as a rule."""
    found = find_tunnels([tunnel.name for tunnel in tunnels], connection)
    present = {tunnel.name: tunnel for tunnel in found.tunnels}
    errors: list[NetlinkError] = []
    for tunnel in tunnels:
        known = present.get(tunnel.name)
        if known is None or known.remote != tunnel.remote:
            errors.append(NetlinkError(str(name_is_taken(tunnel.remote))))
            continue
        try:
            if known != tunnel:
                change_tunnel(tunnel, connection)
            _complete(found.links[tunnel.name], routes[tunnel.name], connection)
        except NetlinkError as error:
            errors.append(error)
    return errors


def _complete(link: Link, route: Route, connection: Connection) -> None:
    requests = [new_route(route, link.index)]
    if link.state is LinkState.DOWN:
        requests.insert(0, set_up(link.index))
    connection.apply(requests, tolerate={errno.EEXIST})


def remove_peers(peers: Collection[IPAddress]) -> None:
    """Delete the tunnels and, with them, their routes. Idempotent. Never one of another peer that has the name."""
    with Connection() as connection:
        found = find_tunnels([tunnel_name(peer) for peer in peers], connection)
    delete_tunnels([tunnel.name for tunnel in found.tunnels if tunnel.remote in peers])


def read_nat_counters(spec: RouterSpec) -> tuple[NatCounter, ...]:
    """Two for each family of the router."""
    values = read_counters(ROUTER_TABLE)
    return tuple(
        NatCounter(family=family, kind=kind, packets=value.packets, bytes=value.bytes)
        for family in families_of(spec.addresses)
        for kind in NatCounterKind
        if (value := values.get(counter_name(family, kind))) is not None
    )


R = TypeVar("R")


class RouterNetwork:
    """The router's end of the tunnels, in the namespace of the process or in `netns`. An async context manager; leaving
    it waits for running jobs and leaves the kernel's state as it is. Needs CAP_NET_ADMIN in the namespace.

    Calls take turns. One that is cancelled before its turn has no effect; later it takes effect nevertheless.
    """

    def __init__(self, netns: NetnsPath | None = None) -> None:
        self._netns = netns
        self._stack = AsyncExitStack()
        self._worker: Worker
        self._spec: RouterSpec | None = None

    async def __aenter__(self) -> "RouterNetwork":
        async with AsyncExitStack() as stack:
            home = Namespace(self._netns) if self._netns is not None else Namespace.current()
            stack.enter_context(home)
            self._worker = Worker("egress-router", home, threads=1)
            stack.push_async_callback(self._worker.aclose)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def set_up(self, spec: RouterSpec) -> None:
        """Make everything but the peers: FOU ports, flow-based devices, sysctls, the lookup of the peers' table, NAT.

        Idempotent; keeps counters, and peers that are complete. To be called before the other methods; once, or again
        with another specification. Raises ValueError for a router without an address, NetlinkError (a sysctl that
        cannot be written is named, with what to do about it), NftError.
        """
        self._spec = spec
        await self._worker.run(set_up_router, spec)

    async def peers(self) -> frozenset[IPAddress]:
        """The peers that are complete in the kernel: device up, and route. Raises NetlinkError."""
        return await self._with_spec(read_peers)

    async def add_peers(self, peers: Collection[IPAddress], source_port: SourcePort) -> None:
        """Make a tunnel and a route for each; when it returns, they can send and be answered.

        Idempotent; where a tunnel is there, its source port is changed in place and no packet is lost. What it costs
        depends on how many peers are given, not on how many there are. Addresses of a family that the router does not
        have, and its own, are passed over.

        Raises NetlinkError for the first that was refused, after having tried all others; also for an address whose
        device name another one has (32 bits of a hash, in IPv6).
        """
        wanted = frozenset(peers)
        await self._with_spec(lambda spec: add_peers(wanted, spec, source_port))

    async def remove_peers(self, peers: Collection[IPAddress]) -> None:
        """Take away routes and tunnels. Idempotent: those that are not there are fine. Raises NetlinkError."""
        await self._worker.run(remove_peers, frozenset(peers))

    async def counters(self) -> tuple[NatCounter, ...]:
        """The router's counters, two for each of its families, counted since its first set-up. Raises NftError."""
        return await self._with_spec(read_nat_counters)

    async def _with_spec(self, job: Callable[[RouterSpec], R]) -> R:
        if self._spec is None:
            raise RuntimeError("set_up comes first")
        return await self._worker.run(job, self._spec)
