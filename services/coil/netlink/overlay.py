"""`OverlayNetwork`: what an agent of the EIP gateway asks of the kernel, without waiting for it on the event loop.

    tunnel   ensure_tunnel ─► sync_peers ─► sync_marks      the mesh: a VXLAN link, its peers, the ways into it
    wireguard   ensure_wireguard ─► sync_wireguard_peers    what carries the mesh where that is encrypted
    eip      ensure_eip_device ─► sync_eips ─► announce     the floating addresses of this node
    both     parent_of, ensure_sysctls, changed, clean_up

Each method compares with what the kernel says and changes the difference, so the order after a change by somebody else
is that of the first time. The mesh has one thread and the addresses another: an address that has to go does not wait
for a thousand peers. What is not ours is never touched; ours are three links, by name and kind, rules by protocol and
priority, routes by protocol and link, proxy entries by protocol.
"""

import asyncio
import errno
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, ParentLink, Sysctl
from coil.kernel.mark import MARK_CLAIM, MARK_PROTOCOL, MarkGate, plan_marks
from coil.kernel.route import Route, diff_routes
from coil.kernel.rule import Rule, RuleChanges
from coil.kernel.vxlan import VXLAN_KIND, OverlayPeer, PeerChanges, Vxlan
from coil.kernel.wireguard import WIREGUARD_KIND, WIREGUARD_LINK, PublicKey, WireGuard, WireGuardChanges, WireGuardPeer
from coil.netlink import announcement, eip_link
from coil.netlink.address import AddressChanges
from coil.netlink.arp_responder import Answers, ArpResponder, open_arp_socket
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.forwarding import ensure_forwarding
from coil.netlink.link import find_link, read_links
from coil.netlink.monitor import OverlayWatch, open_event_socket
from coil.netlink.node_sysctl import NodeSysctls
from coil.netlink.removal import remove_links
from coil.netlink.route import delete_route, dump_link_routes, parse_route, replace_route
from coil.netlink.rule import delete_gate, new_gate, read_rules, sync_rules
from coil.netlink.sysctl import read_sysctl
from coil.netlink.vxlan import ensure_vxlan, sync_peers
from coil.netlink.wireguard import ensure_wireguard, read_wireguard_peers, sync_wireguard_peers
from coil.netlink.worker import Worker, open_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkChanges:
    """What was done: rules, routes that came or changed, routes that went."""

    rules: RuleChanges
    puts: tuple[Route, ...] = ()
    deletes: tuple[Route, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules or self.puts or self.deletes)


def sync_marks(device: LinkName, paths: Mapping[int, Collection[IPAddress]], connection: Connection) -> MarkChanges:
    """Make `ways` all marks that have a rule and a table, by the addresses that they lead to; see `plan_marks`.

    A mark that is there before and after has a way at every instant. Idempotent. Raises ValueError for what cannot be
    planned, NetlinkError where there is no such link, or for the first step that the kernel refused, after having tried
    the others.
    """
    plan = plan_marks(device, paths)
    link = find_link(device, connection)
    if link is None:
        raise NetlinkError(f"there is no link {device}")
    have = _read_link_routes(device, link.index, connection)
    want: dict[int, list[Route]] = {}
    for route in plan.routes:
        want.setdefault(route.table, []).append(route)
    changes = [diff_routes(have.get(table, ()), want.get(table, ())) for table in sorted(have.keys() | want.keys())]
    puts = tuple(route for change in changes for route in (*change.replaces, *change.adds))
    deletes = tuple(route for change in changes for route in (*change.clears, *change.deletes))
    # A rule without its table lets packets go on to the rules after it, and out of the node as they are.
    errors: list[KernelError] = connection.submit([replace_route(route, link.index) for route in puts])
    rules = sync_rules(plan.rules, claim=MARK_CLAIM, connection=connection)
    errors += _sync_gates(plan.gates, connection)
    leaving = [delete_route(route, link.index) for route in deletes]
    errors += connection.submit(leaving, tolerate={errno.ESRCH})
    for error in errors:
        raise error
    return MarkChanges(rules=rules, puts=puts, deletes=deletes)


def remove_marks(connection: Connection) -> RuleChanges:
    """Delete the rules of all marks. Their tables go with the tunnel's link. Idempotent. Raises NetlinkError."""
    errors = _sync_gates((), connection)
    changes = sync_rules((), claim=MARK_CLAIM, connection=connection)
    for error in errors:
        raise error
    return changes


def _sync_gates(wanted: Collection[MarkGate], connection: Connection) -> list[KernelError]:
    """A gate that is there costs less to refuse than to look for among all rules."""
    requests = [
        request
        for gate in map(MarkGate, Family)
        for request in (new_gate(gate) if gate in wanted else delete_gate(gate))
    ]
    # A kernel without a family has no packets of it.
    return connection.submit(requests, tolerate={errno.EEXIST, errno.ENOENT, errno.EAFNOSUPPORT})


def _read_link_routes(device: LinkName, index: int, connection: Connection) -> dict[int, list[Route]]:
    """Our routes over the link, by table."""
    routes: dict[int, list[Route]] = {}
    for family in Family:
        for body in connection.dump(dump_link_routes(family, index=index, protocol=MARK_PROTOCOL)):
            route = parse_route(body, {index: device})
            if route is not None:
                routes.setdefault(route.table, []).append(route)
    return routes


TUNNEL_LINK: Final = LinkName("egress.vxlan")
EIP_LINK: Final = LinkName("egress.eip")

_LIBERAL: Final = "net/netfilter/nf_conntrack_tcp_be_liberal"
"""A connection whose address was elsewhere for a while and comes back is far beyond the window that conntrack remembers
of it. Called invalid it would never be translated again. There is no such file before conntrack is in use.
"""

R = TypeVar("R")


class OverlayNetwork:
    """The overlay of the namespace of the process, or of the one at `netns`. An async context manager.

    Leaving the context waits for running jobs and leaves the kernel's state as it is. A cancelled call may still take
    effect. All methods raise NetlinkError where the kernel refused something, and BusyError where far too much waits.
    """

    def __init__(
        self,
        netns: Path | None = None,
        *,
        tunnel: LinkName = TUNNEL_LINK,
        wireguard: LinkName = WIREGUARD_LINK,
        eip_device: LinkName = EIP_LINK,
        sysctls: NodeSysctls | None = None,
        excluded: Sequence[re.Pattern[str]] = (),
    ) -> None:
        """`excluded` are names of links on which no address is announced, nor answered for by others than the kernel's
        ARP; see `read_parents`.
        """
        self._netns = netns
        self._excluded = excluded
        self._sysctls = sysctls or NodeSysctls()
        self._tunnel = tunnel
        self._wireguard = wireguard
        self._eip_device = eip_device
        self._links = (tunnel, wireguard, eip_device)
        self._parent: LinkName | None = None
        self._stack = AsyncExitStack()
        self._mesh: Worker
        self._eips: Worker
        self._watch: OverlayWatch
        self._responder: ArpResponder | None = None

    async def __aenter__(self) -> "OverlayNetwork":
        async with AsyncExitStack() as stack:
            self._mesh = await stack.enter_async_context(open_worker("overlay-mesh", self._netns))
            self._eips = await stack.enter_async_context(open_worker("overlay-eip", self._netns))
            events = await self._mesh.run(open_event_socket)
            self._watch = OverlayWatch(events, self._links)
            stack.callback(self._watch.close)
            self._responder = await self._open_responder()
            if self._responder is not None:
                stack.callback(self._responder.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _open_responder(self) -> ArpResponder | None:
        """None without CAP_NET_RAW, which only nodes need where others have set arp_ignore."""
        try:
            return ArpResponder(await self._eips.run(open_arp_socket))
        except PermissionError:
            return None

    async def parent_of(self, address: IPAddress) -> ParentLink:
        """The link that has the node's address, from now on watched as ours are. Raises NetlinkError if none has."""
        parent = await self._connected(
            self._eips,
            lambda connection: eip_link.find_parent(address, connection, without=self._links),
        )
        self._watch.follow(parent.name, parent.index)
        return parent

    async def ensure_sysctls(self, families: Collection[Family]) -> None:
        """Have the node forward packets of the families, and answer ARP for its addresses on every link. Idempotent.

        TCP connections that come back from another node are not called invalid from then on.

        What concerns a single link of ours, or a link that answers for an EIP, is written with that link. Raises
        NetlinkError that names the sysctl and says what to do.
        """
        await self._eips.run(_ensure_sysctls, families, self._sysctls, self._responder is not None)

    async def ensure_tunnel(self, vxlan: Vxlan) -> bool:
        """Have the tunnel's link there as described, up, with exactly these addresses. Idempotent.

        True if it was made, or made anew since what differed cannot be changed: then it knows no peers and has no
        routes, and `sync_peers` and `sync_marks` have to follow. EIPs that no network of a link contains are announced
        on its parent. Raises ValueError if it has not the name that this network was made with.
        """
        if vxlan.name != self._tunnel:
            raise ValueError(f"the tunnel's link is {self._tunnel}, not {vxlan.name}")
        self._parent = vxlan.parent
        created = await self._connected(self._mesh, lambda connection: ensure_vxlan(vxlan, connection))
        await self._follow(self._mesh, self._tunnel)
        return created

    async def sync_peers(self, peers: Sequence[OverlayPeer]) -> PeerChanges:
        """Make `peers` all that the tunnel's link knows. Idempotent. Raises ValueError where two share an address."""
        return await self._connected(self._mesh, lambda connection: sync_peers(self._tunnel, peers, connection))

    async def ensure_wireguard(self, wireguard: WireGuard) -> PublicKey:
        """Have the link that carries the encrypted mesh there, with a key; returns the public one. Idempotent.

        Another key than before means that the link was made anew, and `sync_wireguard_peers` has to follow. Raises
        ValueError if it has not the name that this network was made with.
        """
        if wireguard.name != self._wireguard:
            raise ValueError(f"the link of WireGuard is {self._wireguard}, not {wireguard.name}")
        key = await self._connected(self._mesh, lambda connection: ensure_wireguard(wireguard, connection))
        await self._follow(self._mesh, self._wireguard)
        return key

    async def sync_wireguard_peers(self, peers: Sequence[WireGuardPeer]) -> WireGuardChanges:
        """Make `peers` all that the link of WireGuard knows, and route their tunnel addresses into it. Idempotent.

        Raises ValueError where two share a key or an address.
        """
        return await self._connected(
            self._mesh, lambda connection: sync_wireguard_peers(self._wireguard, peers, connection)
        )

    async def read_wireguard_peers(self) -> tuple[WireGuardPeer, ...]:
        """What `sync_wireguard_peers` has set, of an earlier process as well; nothing where there is no such link."""
        return await self._connected(self._mesh, lambda connection: read_wireguard_peers(self._wireguard, connection))

    async def remove_wireguard(self) -> None:
        """Delete the link that carries the encrypted mesh, with its key. Idempotent."""
        await self._connected(
            self._mesh, lambda connection: _remove_link(self._wireguard, (WIREGUARD_KIND,), connection)
        )

    async def sync_marks(self, paths: Mapping[int, Collection[IPAddress]]) -> MarkChanges:
        """For each mark, by family, the tunnel address that packets which carry it are sent to; all marks there are.

        A mark that is there before and after has a way at every instant. Idempotent. Raises ValueError; see
        `coil.kernel.mark.plan_marks`.
        """
        return await self._connected(self._mesh, lambda connection: sync_marks(self._tunnel, paths, connection))

    async def ensure_eip_device(self) -> None:
        """Have the link of the EIPs there and up: a dummy, or a bridge without ports. Idempotent."""
        await self._connected(self._eips, lambda connection: eip_link.ensure_eip_link(self._eip_device, connection))
        await self._follow(self._eips, self._eip_device)

    async def sync_eips(self, eips: Collection[IPAddress]) -> AddressChanges:
        """Make `eips` all floating addresses of the node: what leaves goes first, what comes is answered for when this
        returns, though nobody has been told; see `announce`. Idempotent.
        """
        wanted, parent = frozenset(eips), self._parent
        if self._responder is not None:
            self._responder.keep(wanted)

        def sync(connection: Connection) -> AddressChanges:
            changes = eip_link.sync_eips(
                self._eip_device,
                wanted,
                parent=parent,
                connection=connection,
                sysctls=self._sysctls,
                excluded=self._excluded,
            )
            if self._responder is not None:
                links = self._read_announcers(connection) if _kernel_is_silent() else ()
                _answer_for(self._responder, eip_link.find_answers(wanted, links, parent=parent))
            return changes

        return await self._connected(self._eips, sync)

    def _read_announcers(self, connection: Connection) -> list[ParentLink]:
        return eip_link.read_parents(connection, without=self._links, excluded=self._excluded)

    async def answer(self, is_held: Callable[[IPAddress], bool]) -> None:
        """Answer ARP requests for the floating addresses of the last `sync_eips` until cancelled, where the kernel does
        not. `is_held` is asked right before each answer. For one task.
        """
        if self._responder is None:
            await asyncio.Event().wait()
        else:
            await self._responder.run(is_held)

    async def announce(
        self, addresses: Iterable[IPAddress], *, is_held: Callable[[IPAddress], bool] = lambda _address: True
    ) -> None:
        """Tell hosts that the addresses are here, once: on each link with a network that contains it, or the parent.

        `is_held` is called in the worker's thread right before each is sent, and must be quick; False leaves it out.
        Raises NetlinkError for the first that could not be sent, after having tried the others.
        """
        wanted, parent = tuple(addresses), self._parent

        def job() -> None:
            with Connection() as connection:
                links = self._read_announcers(connection)
            announcement.announce(wanted, links, parent=parent, is_held=is_held)

        await self._eips.run(job)

    async def rules(self) -> list[Rule]:
        """All rules of the namespace, others' included; see `read_rules`."""
        return await self._connected(self._mesh, read_rules)

    async def link_names(self) -> frozenset[LinkName]:
        """Those of all links of the namespace. Raises NetlinkError."""
        links = await self._connected(self._mesh, read_links)
        return frozenset(link.name for link in links)

    async def changed(self) -> None:
        """Wait until a link, an address or a rule of the overlay, or the parent, has changed since this returned last.

        A hint: our own changes count, and whatever changed meanwhile counts once. For one task. A cancellation loses
        nothing.
        """
        await self._watch.changed()

    async def clean_up(self) -> None:
        """Delete all that is ours: proxy entries, rules, the links with what hangs on them. Idempotent.

        Sysctls of the node stay (forwarding, conntrack, arp_ignore, proxy_ndp): nobody can tell who counts on them.
        Raises NetlinkError for what could not be deleted.
        """
        await self._connected(self._eips, self._remove_eips)
        await self._connected(self._mesh, self._remove_mesh)
        self._parent = None

    def _remove_eips(self, connection: Connection) -> None:
        eip_link.remove_proxies(connection)
        _remove_link(self._eip_device, eip_link.EIP_KINDS, connection)

    def _remove_mesh(self, connection: Connection) -> None:
        remove_marks(connection)
        _remove_link(self._tunnel, (VXLAN_KIND,), connection)
        _remove_link(self._wireguard, (WIREGUARD_KIND,), connection)

    async def _follow(self, worker: Worker, name: LinkName) -> None:
        """Watch the addresses of a link that an earlier process has made, too."""
        link = await self._connected(worker, lambda connection: find_link(name, connection))
        if link is not None:
            self._watch.follow(link.name, link.index)

    async def _connected(self, worker: Worker, function: Callable[[Connection], R]) -> R:
        def job() -> R:
            with Connection() as connection:
                return function(connection)

        return await worker.run(job)


def _remove_link(name: LinkName, kinds: Collection[str], connection: Connection) -> None:
    link = find_link(name, connection)
    if link is not None and link.kind in kinds:
        remove_links((name,))


def _answer_for(responder: ArpResponder, answers: Answers) -> None:
    try:
        responder.set_answers(answers)
    except OSError as error:
        raise NetlinkError(f"cannot filter ARP requests: {error.strerror}") from error


def _kernel_is_silent() -> bool:
    """Whether it answers no ARP for addresses of other links. Others have set that on purpose (kube-proxy's strictARP),
    so it is not for us to undo.
    """
    return read_sysctl("net/ipv4/conf/all/arp_ignore") not in (None, "0")


def _ensure_sysctls(families: Collection[Family], sysctls: NodeSysctls, has_responder: bool) -> None:
    ensure_forwarding(families, sysctls)
    if read_sysctl(_LIBERAL) is not None:
        sysctls.ensure((Sysctl(_LIBERAL, "1"),))
    if Family.IPV4 in families and not has_responder and _kernel_is_silent():
        raise NetlinkError(
            "net.ipv4.conf.all.arp_ignore is set: the kernel answers no ARP for addresses of other links, and so for "
            "no EIP, and this process needs CAP_NET_RAW to answer instead"
        )
