"""What a node's pods with addresses of interfaces need of its routing: one rule for all pods, one for the connections
that are the primary interface's; for each other interface a table, and a rule for the connections that are its own; and
a rule for each pod of those interfaces.

    512    lookup 116                          to a pod of this node: its route
    1024   fwmark 0x80/0x80   lookup main      what is the primary interface's, whoever sends it
    1025   fwmark 0x41/0x7f   lookup 10001     answers of connections that came in by another interface
    1536   from a pod's address   lookup 10001 the table of the interface that has the address

The numbers are the proposal's, with two differences. Where it has a rule at 512 for each pod, one looks up the table
that has the pods' routes and nothing else. And where it has `not from all to 10.0.0.0/16 lookup main` at 1025, which
with a second CIDR would send each of them to main by the other's rule, it is not the destination of a packet that
decides but its connection (`coil.eni.nat_plan`): one that a pod opens to the outside is translated and gets the mark.
So what a pod answers to the outside leaves by the interface by which it was asked, with the pod's own address, which
EC2 takes from no other interface; a CIDR that comes to the VPC breaks no connection that is translated already; and
rules of others behind these are still reached.

Whoever answers a connection that came in by an interface, the answer leaves by it. Where the pod's own interface is
another one, as it may be with a NodePort at an address of the interface, nothing but the connection tells.

What pods of the primary interface send needs no rule at 1536: main is what comes next. In IPv6 nothing is translated,
and prefixes are on the primary interface only, so main is right for all of it.

An interface's own address is a source like its pods': what the node sends with it, masqueraded packets for example,
leaves by that interface.

Whose a rule is follows from protocol and priority, whose a route is from its protocol and its table.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from coil.eni.interface import InterfaceId, NetworkInterface
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.link import LinkName
from coil.kernel.nft_table import PortChoice
from coil.kernel.route import DEFAULT_NETWORKS, Route, RouteScope, RouteTable, RouteType
from coil.kernel.rule import Rule, RuleClaim

POD_PRIORITY: Final = 512
PRIMARY_PRIORITY: Final = 1024
ANSWER_PRIORITY: Final = 1025
SOURCE_PRIORITY: Final = 1536
PROTOCOL: Final = 30
"""What Coil's routes and rules carry everywhere."""
RULE_CLAIM: Final = RuleClaim(
    protocol=PROTOCOL, priorities=frozenset({POD_PRIORITY, PRIMARY_PRIORITY, ANSWER_PRIORITY, SOURCE_PRIORITY})
)
SHARED_CLAIM: Final = RuleClaim(protocol=PROTOCOL, priorities=frozenset({POD_PRIORITY, PRIMARY_PRIORITY}))
"""Of these, those that depend neither on which interfaces nor on which pods there are."""
PRIMARY_MARK: Final = 0x80
"""The bit, of a connection and of its packets, that says: by the primary interface."""
SECONDARY_MARK: Final = 0x40
"""The bit that says: by another interface, whose device number the bits below are."""
SECONDARY_MASK: Final = 0x7F
"""These bits; a number alone would be what people mark with. All others are others', such as kube-proxy's."""
FIRST_TABLE: Final = 10_000
"""Each interface but the primary one, which uses main, has this plus its device number."""
TABLES: Final = range(FIRST_TABLE, FIRST_TABLE + 256)
"""Those of interfaces: more than any type of instance can have."""
LAST_METRIC: Final = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedInterface:
    """An interface of the node, and the CIDR of its subnet."""

    interface: NetworkInterface
    subnet: IPv4Network

    @property
    def gateway(self) -> IPv4Address:
        """The router of its subnet: the second address (VPC User Guide, "Subnet CIDR blocks")."""
        return self.subnet[1]

    @property
    def is_primary(self) -> bool:
        return self.interface.is_primary

    @property
    def mark(self) -> int | None:
        """What connections have that came in by the interface; None for the primary one, and for numbers that do not
        fit: no type of instance has so many on a network card.
        """
        number = self.interface.device_number
        return None if self.is_primary or number & ~(SECONDARY_MASK ^ SECONDARY_MARK) else SECONDARY_MARK | number

    @property
    def table(self) -> int:
        """The table by which packets leave through the interface."""
        return RouteTable.MAIN if self.is_primary else table_of(self.interface.device_number)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What the node's network has to be made for.

    `interfaces` are those that EC2 has attached to the node, whether or not their links have appeared. `inside` is what
    pods reach with their own addresses: the VPC's CIDRs, and what is excluded from translation. `external_snat`:
    something outside the node translates; `snat_ports`: where the node does, the source ports. `metadata_access`: pods
    may ask the metadata service. Not `complete`: EC2 has not spoken yet, and there may be more interfaces.
    """

    interfaces: tuple[AttachedInterface, ...]
    inside: frozenset[IPv4Network]
    external_snat: bool = False
    snat_ports: PortChoice = PortChoice.FULLY_RANDOM
    metadata_access: bool = False
    complete: bool = True

    def find(self, interface: InterfaceId) -> AttachedInterface | None:
        return next((each for each in self.interfaces if each.interface.id == interface), None)

    @property
    def primary(self) -> AttachedInterface | None:
        return next((each for each in self.interfaces if each.is_primary), None)

    @property
    def ranges(self) -> frozenset[IPNetwork]:
        """What pods may have addresses of."""
        return frozenset(network for each in self.interfaces for network in each.interface.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """The rules of the claim, and the routes of each table of an interface."""

    rules: tuple[Rule, ...]
    tables: Mapping[int, tuple[Route, ...]]


def table_of(device_number: int) -> int:
    """The table by which packets leave through the interface of that number, if it is not the primary one."""
    return FIRST_TABLE + device_number


def plan_node(
    interfaces: Collection[AttachedInterface],
    links: Mapping[InterfaceId, LinkName],
    pods: Iterable[tuple[IPAddress, InterfaceId]],
    *,
    pod_table: int,
) -> NodePlan:
    """`links` are the interfaces that the node's kernel has, by their present names. `pods` are the pods' addresses and
    the interfaces that have them.

    The pods of an interface that is not among `interfaces` have no rule.
    """
    known = {each.interface.id: each for each in interfaces}
    rules = [Rule(family=family, priority=POD_PRIORITY, table=pod_table, protocol=PROTOCOL) for family in Family]
    rules.append(
        Rule(
            family=Family.IPV4,
            priority=PRIMARY_PRIORITY,
            table=RouteTable.MAIN,
            protocol=PROTOCOL,
            mark=PRIMARY_MARK,
            mask=PRIMARY_MARK,
        )
    )
    rules += [rule for each in interfaces if (rule := plan_answer_rule(each)) is not None]
    own = [(each.interface.primary, each.interface.id) for each in interfaces]
    sources = (
        plan_source_rule(address, known[interface]) for address, interface in (*own, *pods) if interface in known
    )
    return NodePlan(
        rules=(*sorted(rules, key=str), *sorted({rule for rule in sources if rule is not None}, key=str)),
        tables={
            each.table: plan_table(each, links.get(each.interface.id)) for each in interfaces if not each.is_primary
        },
    )


def plan_answer_rule(attached: AttachedInterface) -> Rule | None:
    """By which the answers of what came in by the interface leave through it; None where main is right."""
    if attached.mark is None:
        return None
    return Rule(
        family=Family.IPV4,
        priority=ANSWER_PRIORITY,
        table=attached.table,
        protocol=PROTOCOL,
        mark=attached.mark,
        mask=SECONDARY_MASK,
    )


def plan_source_rule(address: IPAddress, attached: AttachedInterface) -> Rule | None:
    """By which what has this source leaves through the interface that has the address; None where main is right."""
    if attached.is_primary or not isinstance(address, IPv4Address):
        return None
    return Rule(
        family=Family.IPV4,
        priority=SOURCE_PRIORITY,
        table=attached.table,
        protocol=PROTOCOL,
        source=IPv4Network(address),
    )


def plan_table(attached: AttachedInterface, link: LinkName | None) -> tuple[Route, ...]:
    """The subnet's router, and everything by way of it, the interface's own neighbours included.

    Behind that, nothing can be reached: while the interface has no link, or one that somebody has set down, what its
    pods send must not come to main, and leave by the primary interface with their addresses.
    """
    everything = DEFAULT_NETWORKS[Family.IPV4]
    nothing = Route(
        destination=everything,
        device=None,
        table=attached.table,
        protocol=PROTOCOL,
        type=RouteType.UNREACHABLE,
        metric=LAST_METRIC,
    )
    if link is None:
        return (nothing,)
    return (
        Route(
            destination=IPv4Network(attached.gateway),
            device=link,
            table=attached.table,
            protocol=PROTOCOL,
            scope=RouteScope.LINK,
        ),
        Route(
            destination=everything,
            device=link,
            gateway=attached.gateway,
            table=attached.table,
            protocol=PROTOCOL,
            # The link has no network that would contain the router.
            onlink=True,
        ),
        nothing,
    )
