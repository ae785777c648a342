"""What egressgateway 0.6 has left on the node: found, and removed step by step, without blocking the event loop.

    rules and chains of iptables-nft, in one transaction
      ─► of iptables-legacy, table by table ─► policy routing rules ─► the tunnel's link, and its routes ─► IP sets

Nothing captures a packet any more after the first two. The IP sets come last: they have no effect by themselves, they
cannot be destroyed while a rule asks them, and as long as they are there an agent that was killed in between finds that
it has not finished.
"""

from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias

from coil.crd.names import NodeName
from coil.eip.egressgateway import IPTABLES, REPLY_TABLE, owns_link, owns_set, select_rules
from coil.kernel.family import Family
from coil.kernel.link import Link
from coil.kernel.route import RouteTable
from coil.kernel.rule import Rule
from coil.kernel.vxlan import VXLAN_KIND
from coil.netlink.connection import Connection
from coil.netlink.ipset import destroy_sets, read_sets
from coil.netlink.link import get_link, read_links
from coil.netlink.removal import remove_links
from coil.netlink.route import dump_link_routes, parse_route_place, read_routes
from coil.netlink.rule import delete_rules, read_rules
from coil.netlink.vxlan import parse_vxlan
from coil.netlink.worker import Worker, open_worker
from coil.nft.iptables_removal import (
    find_claimed_rules,
    find_legacy_rules,
    remove_claimed_rules,
    remove_legacy_rules,
)
from coil.nft.netfilter import NftError
from coil_egress_agent.eip.kernel import bounded

_ANY_PROTOCOL: Final = 0

Step: TypeAlias = Callable[[NodeName], Collection[str]]
"""Runs in a worker's thread; what it leaves behind on purpose. Idempotent. Raises one of KERNEL_ERRORS."""


class EgressgatewayState:
    """Implements `FormerState` for the process's namespace, or the one at `netns`, which is that of the Node `node`. An
    async context manager; leaving it waits for the step that runs.
    """

    def __init__(self, node: NodeName, *, netns: Path | None = None) -> None:
        self._node = node
        self._netns = netns
        self._worker: Worker
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "EgressgatewayState":
        self._worker = await self._stack.enter_async_context(open_worker("former-gateway", self._netns))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def find(self) -> list[str]:
        """See `FormerState`."""
        return await bounded(self._worker.run(_find, self._node))

    async def remove(self) -> list[str]:
        """See `FormerState`. Idempotent."""
        left: list[str] = []
        for step in STEPS:
            left += await bounded(self._worker.run(step, self._node))
        return left


def _find(node: NodeName) -> list[str]:
    found = find_claimed_rules(IPTABLES)
    # Nodes where its programs refuse to look have nothing of egressgateway, as a rule: where they have, there is more
    # of it than that, and then the removal fails and says why.
    with suppress(NftError):
        found += find_legacy_rules(IPTABLES)
    with Connection() as connection:
        links = _read_tunnels(node, connection)
        found += map(str, _select_rules(links, connection))
        found += (f"link {link.name}" for link in links)
    return found + [f"IP set {name}" for name in _read_sets()]


def _remove_nft_rules(_node: NodeName) -> Collection[str]:
    remove_claimed_rules(IPTABLES)
    return ()


def _remove_legacy_rules(_node: NodeName) -> Collection[str]:
    remove_legacy_rules(IPTABLES)
    return ()


def _remove_routing_rules(node: NodeName) -> Collection[str]:
    with Connection() as connection:
        delete_rules(_select_rules(_read_tunnels(node, connection), connection), connection)
    return ()


def _remove_links(node: NodeName) -> Collection[str]:
    with Connection() as connection:
        links = _read_tunnels(node, connection)
    remove_links([link.name for link in links])
    return ()


def _remove_sets(_node: NodeName) -> Collection[str]:
    return destroy_sets(_read_sets())


STEPS: Final[tuple[Step, ...]] = (
    _remove_nft_rules,
    _remove_legacy_rules,
    _remove_routing_rules,
    _remove_links,
    _remove_sets,
)


def _read_tunnels(node: NodeName, connection: Connection) -> list[Link]:
    found = []
    for link in read_links(connection):
        if link.kind == VXLAN_KIND:
            state = parse_vxlan(connection.get(get_link(link.name)), link)
            if state is not None and owns_link(link, state, node):
                found.append(link)
    return found


def _select_rules(tunnels: Collection[Link], connection: Connection) -> list[Rule]:
    """Before the links go: which tables lead over them is known from their routes."""
    return select_rules(read_rules(connection), _read_tables(tunnels, connection))


def _read_tables(tunnels: Collection[Link], connection: Connection) -> set[int]:
    tables = {
        parse_route_place(body)[0]
        for link in tunnels
        for family in Family
        for body in connection.dump(dump_link_routes(family, index=link.index, protocol=_ANY_PROTOCOL))
    }
    tables -= set(RouteTable)  # the kernel's own, which have the tunnel's network
    names = {link.name for link in tunnels}
    if REPLY_TABLE in tables and any(route.device not in names for route in read_routes(REPLY_TABLE, connection)):
        tables.remove(REPLY_TABLE)
    return tables


def _read_sets() -> list[str]:
    return [each.name for each in read_sets() if owns_set(each.name, each.kind)]
