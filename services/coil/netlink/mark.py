"""Rules and tables of node marks, brought in line. Runs in a worker's thread, in the namespace of the tunnel's link."""

import errno
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.kernel.mark import MARK_CLAIM, MARK_PROTOCOL, MarkGate, plan_marks
from coil.kernel.route import Route, diff_routes
from coil.kernel.rule import RuleChanges
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.link import find_link
from coil.netlink.route import delete_route, dump_link_routes, parse_route, replace_route
from coil.netlink.rule import delete_gate, new_gate, sync_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkChanges:
    """What was done: rules, routes that came or changed, routes that went."""

    rules: RuleChanges
    puts: tuple[Route, ...] = ()
    deletes: tuple[Route, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules or self.puts or self.deletes)


def sync_marks(device: LinkName, ways: Mapping[int, Collection[IPAddress]], connection: Connection) -> MarkChanges:
    """Make `ways` all marks that have a rule and a table, by the addresses that they lead to; see `plan_marks`.

    A mark that is there before and after has a way at every instant. Idempotent. Raises ValueError for what cannot be
    planned, NetlinkError where there is no such link, or for the first step that the kernel refused, after having tried
    the others.
    """
    plan = plan_marks(device, ways)
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
