"""The node's side of elastic network interfaces: their links, tables and rules. Runs in a worker's thread, in the
node's namespace.

    sync_node(interfaces, pods, ...) -> NodeSync       everything that is ours made what is wanted
    add_source_rule, delete_source_rule                one pod's rule, one message

A link is found by its hardware address, whatever its name is and whenever it appears. What is done to one: it is set
up, it gets the MTU of the primary interface's link, and the address that EC2 has for the interface, without a route to
its network. The kernel needs the address to ask for the subnet's router, and for what others masquerade. The primary
interface's link belongs to the operating system; there, as on the others, only settings of the kernel are changed with
which packets of pods would be dropped (`coil.netlink.eni_sysctl`).

Routes of the tables that are for interfaces, and rules of the claim, are made what is wanted; all others are left
alone, with one exception: what has the place of a route of ours in such a table is replaced.
"""

import errno
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface

from coil.eni.interface import InterfaceId
from coil.eni.node_plan import (
    PROTOCOL,
    RULE_CLAIM,
    SHARED_CLAIM,
    TABLES,
    AttachedInterface,
    NodePlan,
    plan_node,
)
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import Address, Link, LinkName, LinkState, MacAddress, Sysctl
from coil.kernel.route import Route, diff_routes
from coil.kernel.rule import Rule
from coil.netlink.address import new_host_address, read_addresses, read_all_addresses
from coil.netlink.connection import Connection
from coil.netlink.eni_sysctl import keep_advertised_routes, loosen_path_filter
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.link import find_link, read_links, set_mtu, set_up
from coil.netlink.node_sysctl import NodeSysctls
from coil.netlink.route import delete_route, dump_protocol_routes, parse_route, replace_route
from coil.netlink.rule import delete_rule, new_rule, read_rules, sync_rules
from coil.netlink.wire import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSync:
    """`links` are those that the interfaces have now, `changes` what was done, in words; `addresses` are all that the
    node itself has, on whichever link.
    """

    links: Mapping[InterfaceId, Link]
    changes: tuple[str, ...]
    addresses: frozenset[IPAddress] = frozenset()


def sync_node(
    interfaces: Collection[AttachedInterface],
    pods: Collection[tuple[IPAddress, InterfaceId]] | None,
    *,
    pod_table: int,
    mtu: int | None,
    connection: Connection,
    sysctls: NodeSysctls,
) -> NodeSync:
    """Make the links, tables and rules what `coil.eni.node_plan` says. Idempotent.

    `pods` None: it is not known yet which there are, or where; what an earlier process did for them is left alone:
    their rules, and the tables of other interfaces. `mtu` None: that of the primary interface's link. Raises the first
    NetlinkError after having tried everything else.
    """
    links, changes, errors = _sync_links(interfaces, mtu, connection, sysctls)
    names = {interface: link.name for interface, link in links.items()}
    plan = plan_node(interfaces, names, pods or (), pod_table=pod_table)
    pods_known = pods is not None
    for steps in (_sync_tables(plan, pods_known, connection), _sync_rules(plan, pods_known, connection)):
        changes += steps.changes
        errors += steps.errors
    for error in errors:
        raise error
    return NodeSync(links=links, changes=tuple(changes), addresses=read_all_addresses(connection))


@dataclass(frozen=True, slots=True)
class _Steps:
    changes: Collection[str]
    errors: Collection[NetlinkError]


def _sync_links(
    interfaces: Collection[AttachedInterface], mtu: int | None, connection: Connection, sysctls: NodeSysctls
) -> tuple[dict[InterfaceId, Link], list[str], list[NetlinkError]]:
    links = _find_links(interfaces, connection)
    primary = next((links.get(each.interface.id) for each in interfaces if each.is_primary), None)
    requests: list[Request] = []
    written: list[str] = []
    errors: list[NetlinkError] = []
    for attached in interfaces:
        link = links.get(attached.interface.id)
        if link is None:
            continue
        try:
            settings = _ensure_settings(link.name, attached, sysctls)
            written += (f"set {sysctl.path} to {sysctl.value}" for sysctl in settings)
        except NetlinkError as error:
            errors.append(error)
        if link.state is not LinkState.UP:
            requests.append(set_up(link.index))
        if attached.is_primary:
            continue
        wanted_mtu = mtu or (primary.mtu if primary is not None else link.mtu)
        if link.mtu != wanted_mtu:
            requests.append(set_mtu(link.index, wanted_mtu))
        if all(address.ip != attached.interface.primary for address in read_addresses(link, connection)):
            own = Address(link.name, IPv4Interface(attached.interface.primary))
            requests.append(new_host_address(own, link.index))
    errors += connection.submit(requests, tolerate={errno.EEXIST})
    return _looked_at(links, connection), [*written, *(_words(request) for request in requests)], errors


def _find_links(interfaces: Iterable[AttachedInterface], connection: Connection) -> dict[InterfaceId, Link]:
    candidates: dict[MacAddress, list[Link]] = {}
    for link in read_links(connection):
        if link.mac is not None:
            candidates.setdefault(link.mac, []).append(link)
    return {
        attached.interface.id: select_link(found)
        for attached in interfaces
        if (found := candidates.get(attached.interface.mac))
    }


def _looked_at(links: Mapping[InterfaceId, Link], connection: Connection) -> dict[InterfaceId, Link]:
    """The links as they are now, each asked for: only then has the kernel finished with its carrier (`readiness`)."""
    found: dict[InterfaceId, Link] = {}
    for interface, before in links.items():
        link = find_link(before.name, connection)
        if link is not None and link.index == before.index:
            found[interface] = link
    return found


def select_link(links: Collection[Link]) -> Link:
    """Of those with one hardware address the one that others, such as VLANs and bridges, have it from: a device's, or
    the one that was there first.
    """
    return min(links, key=lambda link: (link.kind != "", link.index))


def _ensure_settings(link: LinkName, attached: AttachedInterface, sysctls: NodeSysctls) -> tuple[Sysctl, ...]:
    """Returns what was written."""
    written = loosen_path_filter(link, sysctls)
    if attached.is_primary:
        # Also where pods have no IPv6: the node has it, and forwards.
        written += keep_advertised_routes(link, sysctls)
    return written


def _sync_tables(plan: NodePlan, pods_known: bool, connection: Connection) -> _Steps:
    # The routes first: one whose link is not in the list then has lost it meanwhile, and is gone as well.
    bodies = connection.dump(dump_protocol_routes(Family.IPV4, PROTOCOL))
    indices = {link.name: link.index for link in read_links(connection)}
    names = {index: name for name, index in indices.items()}
    have: dict[int, list[Route]] = {}
    for body in bodies:
        route = parse_route(body, names)
        if route is not None and route.table in TABLES:
            have.setdefault(route.table, []).append(route)
    changes = [
        diff_routes(have.get(table, ()), plan.tables.get(table, ()))
        for table in sorted(have.keys() | plan.tables.keys() if pods_known else plan.tables.keys())
    ]
    puts = [route for change in changes for route in (*change.replaces, *change.adds)]
    deletes = [route for change in changes for route in (*change.clears, *change.deletes)]
    errors = _submit_routes(puts, indices, connection)
    leaving = [delete_route(route, indices.get(route.device or LinkName(""), 0)) for route in deletes]
    errors += connection.submit(leaving, tolerate={errno.ESRCH})
    return _Steps([*(f"put {route}" for route in puts), *(f"delete {route}" for route in deletes)], errors)


def _submit_routes(
    routes: Iterable[Route], indices: Mapping[LinkName, int], connection: Connection
) -> list[KernelError]:
    # A link that has gone since, or that somebody sets down at this moment: the next look will tell.
    there = ((route, 0 if route.device is None else indices.get(route.device)) for route in routes)
    requests = [replace_route(route, index) for route, index in there if index is not None]
    return connection.submit(requests)


def _sync_rules(plan: NodePlan, pods_known: bool, connection: Connection) -> _Steps:
    claim = RULE_CLAIM if pods_known else SHARED_CLAIM
    wanted = [rule for rule in plan.rules if claim.covers(rule)]
    changes = sync_rules(wanted, claim=claim, connection=connection)
    done = [*(f"add {rule}" for rule in changes.adds), *(f"delete {rule}" for rule in changes.deletes)]
    return _Steps(done, ())


def add_source_rule(rule: Rule, connection: Connection) -> None:
    """Add one pod's rule. Idempotent. Raises NetlinkError."""
    connection.apply((new_rule(rule),), tolerate={errno.EEXIST})


def delete_source_rule(rule: Rule, connection: Connection) -> None:
    """Delete one pod's rule. Idempotent. Raises NetlinkError."""
    connection.apply((delete_rule(rule),), tolerate={errno.ENOENT})


def has_source_rule(rule: Rule, connection: Connection) -> bool:
    """Whether a rule does that, whoever installed it. Raises NetlinkError."""
    return any(other.lookup == rule.lookup for other in read_rules(connection))


def _words(request: Request) -> str:
    return " ".join(map(str, request.doing))
