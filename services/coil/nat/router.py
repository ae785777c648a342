"""`RouterNetwork`: the router's end of the tunnels, in one namespace.

Place in the flow: the agent in a router pod sets it up at its start, says what clients may send to, and then adds and
removes peers, which are the addresses of client pods. What is to be is in `coil.egress.router_plan`; the functions are
jobs of a worker's thread.

What one peer costs does not depend on how many there are: a tunnel is made, and only where the kernel says that it is
there already is it looked at, by name. The order of a peer's coming is device, up, route, element.
"""

import errno
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, TypeVar

from coil.egress.gateway import RouterSpec, SourcePort
from coil.egress.router_plan import (
    CLIENT_SETS,
    ROUTER_TABLE,
    NatCounter,
    NatCounterKind,
    client_elements,
    counter_name,
    destination_elements,
    families_of,
    name_is_taken,
    plan_peer_route,
    plan_peers,
    plan_router,
    router_rules,
)
from coil.kernel.family import IPAddress, IPNetwork
from coil.kernel.link import Link, LinkName, LinkState, Sysctl
from coil.kernel.nft_element import ElementChanges, ElementKey, diff_elements
from coil.kernel.route import Route
from coil.kernel.tunnel import Tunnel, tunnel_name
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.fou import ensure_fou_port
from coil.netlink.host import NetnsPath
from coil.netlink.link import set_up
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
from coil.netlink.worker import Worker, open_worker
from coil.nft.element_sync import change_elements, read_elements
from coil.nft.netfilter import NftError
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
    """Those that are complete, and those that have a tunnel which is down or has no route."""
    found = read_tunnels(connection)
    routes = frozenset(read_routes(spec.policy.public_table, connection))
    tunnels = [tunnel for tunnel in found.tunnels if tunnel.name == tunnel_name(tunnel.remote)]
    usable = frozenset(
        tunnel.remote
        for tunnel in tunnels
        if found.links[tunnel.name].state is LinkState.UP and plan_peer_route(tunnel.remote, spec.policy) in routes
    )
    let_in = _read_let_in(spec)
    complete = frozenset(peer for peer in usable if (tunnel_name(peer), str(peer)) in let_in)
    return complete, frozenset(tunnel.remote for tunnel in tunnels) - usable


def _read_let_in(spec: RouterSpec) -> frozenset[ElementKey]:
    """Tunnel and address of each peer whose packets are."""
    elements = read_elements(plan_router(spec).nft_table) or {}
    return frozenset(key for name, keys in elements.items() for key in keys if name in CLIENT_SETS.values())


def add_peers(peers: Collection[IPAddress], spec: RouterSpec, source_port: SourcePort) -> None:
    """Make a tunnel, a route and an element for each. Idempotent. Raises the first NetlinkError or NftError, after
    having tried all.
    """
    with Connection() as connection:
        plan = plan_peers(peers, spec, read_uplink(spec.policy.uplink, connection), source_port)
        routes = {route.device: route for route in plan.routes}
        failures: list[Exception] = [NetlinkError(str(refusal)) for refusal in plan.refusals]
        failed: dict[LinkName, NetlinkError] = {}
        there: list[Tunnel] = []
        for tunnel in plan.tunnels:
            try:
                index = create_tunnel(tunnel, connection)
                open_tunnel(index, (routes[tunnel.name],), connection)
            except KernelError as error:
                if error.errno == errno.EEXIST:
                    there.append(tunnel)
                else:
                    failed[tunnel.name] = error
            except NetlinkError as error:
                failed[tunnel.name] = error
        failed |= _mend(there, routes, connection)
    # Last: until then the name may be another peer's tunnel.
    added = [tunnel.remote for tunnel in plan.tunnels if tunnel.name not in failed]
    failures += failed.values()
    try:
        _change(spec, ElementChanges(adds=client_elements(added)))
    except NftError as error:
        failures.append(error)
    for failure in failures:
        raise failure


def _change(spec: RouterSpec, changes: ElementChanges) -> None:
    change_elements([plan_router(spec).nft_table], changes)


def _mend(
    tunnels: Sequence[Tunnel], routes: dict[LinkName | None, Route], connection: Connection
) -> dict[LinkName, NetlinkError]:
    """Make those tunnels right whose names are taken: by themselves, as a rule. Returns why some are not."""
    found = find_tunnels([tunnel.name for tunnel in tunnels], connection)
    present = {tunnel.name: tunnel for tunnel in found.tunnels}
    errors: dict[LinkName, NetlinkError] = {}
    for tunnel in tunnels:
        known = present.get(tunnel.name)
        if known is None or known.remote != tunnel.remote:
            errors[tunnel.name] = NetlinkError(str(name_is_taken(tunnel.remote)))
            continue
        try:
            if known != tunnel:
                change_tunnel(tunnel, connection)
            _complete(found.links[tunnel.name], routes[tunnel.name], connection)
        except NetlinkError as error:
            errors[tunnel.name] = error
    return errors


def _complete(link: Link, route: Route, connection: Connection) -> None:
    requests = [new_route(route, link.index)]
    if link.state is LinkState.DOWN:
        requests.insert(0, set_up(link.index))
    connection.apply(requests, tolerate={errno.EEXIST})


def remove_peers(peers: Collection[IPAddress], spec: RouterSpec) -> None:
    """Delete the tunnels and, with them, their routes. Idempotent. Never one of another peer that has the name."""
    elements = client_elements(peers)
    # One that is not there cannot be deleted, and to read them all would cost more than to add it first.
    _change(spec, ElementChanges(adds=elements))
    _change(spec, ElementChanges(deletes={name: tuple(keys) for name, keys in elements.items()}))
    with Connection() as connection:
        found = find_tunnels([tunnel_name(peer) for peer in peers], connection)
    delete_tunnels([tunnel.name for tunnel in found.tunnels if tunnel.remote in peers])


def set_destinations(
    destinations: Collection[IPNetwork], spec: RouterSpec, *, cluster: Collection[IPNetwork] = ()
) -> bool:
    """Let clients' packets go to these, and to no others; returns whether that was not so. Idempotent."""
    table = plan_router(spec).nft_table
    wanted = destination_elements(destinations, spec, cluster=cluster)
    actual = {name: words for name, words in (read_elements(table) or {}).items() if name in wanted}
    changes = diff_elements(actual, wanted, ranged=frozenset(wanted))
    change_elements([table], changes)
    return bool(changes)


def read_nat_counters(spec: RouterSpec) -> tuple[NatCounter, ...]:
    """One of each kind for each family of the router."""
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
        self._worker = await self._stack.enter_async_context(open_worker("egress-router", self._netns))
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
        """The peers that are complete in the kernel: device up, route, and let in. Raises NetlinkError, NftError."""
        return await self._with_spec(read_peers)

    async def add_peers(self, peers: Collection[IPAddress], source_port: SourcePort) -> None:
        """Make a tunnel and a route for each; when it returns, they can send and be answered.

        Idempotent; where a tunnel is there, its source port is changed in place and no packet is lost. What it costs
        depends on how many peers are given, not on how many there are. Addresses of a family that the router does not
        have, and its own, are passed over.

        Raises NetlinkError for the first that was refused, after having tried all others; also for an address whose
        device name another one has (32 bits of a hash, in IPv6). NftError, if none of them could be let in.
        """
        wanted = frozenset(peers)
        await self._with_spec(lambda spec: add_peers(wanted, spec, source_port))

    async def remove_peers(self, peers: Collection[IPAddress]) -> None:
        """Take away elements, routes and tunnels. Idempotent: those that are not there are fine. Raises NAT_ERRORS."""
        some = frozenset(peers)
        await self._with_spec(lambda spec: remove_peers(some, spec))

    async def set_destinations(
        self, destinations: Collection[IPNetwork], *, cluster: Collection[IPNetwork] = ()
    ) -> bool:
        """Forward what clients send to these destinations, and drop and count the rest; before the first call, all of
        it. Returns whether anything has changed. Idempotent.

        A destination that contains private networks (RFC 1918, RFC 4193) or networks of the `cluster` is not for what
        is in these: clients reach it without a tunnel. Link-local networks and the metadata services of clouds are no
        destination at all. Raises NftError, and then what was let go before still is.
        """
        wanted, own = tuple(destinations), tuple(cluster)
        return await self._with_spec(lambda spec: set_destinations(wanted, spec, cluster=own))

    async def counters(self) -> tuple[NatCounter, ...]:
        """Each kind for each of the router's families, counted since its first set-up. Raises NftError."""
        return await self._with_spec(read_nat_counters)

    async def _with_spec(self, job: Callable[[RouterSpec], R]) -> R:
        if self._spec is None:
            raise RuntimeError("set_up comes first")
        return await self._worker.run(job, self._spec)
