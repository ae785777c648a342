"""What the VPC's router needs so that it is to instances what a VPC is: as objects of iproute2, and rules of nftables.

Each interface of EC2 has a port of its own. A packet is delivered to the interface that has its destination, whatever
subnet it comes from; what nobody has is dropped without a word. A packet whose source is not an address of the
interface that it came from is dropped (source/destination check), and so is what the groups of either interface do not
allow; replies are. Beyond the VPC leads what the route table of the subnet says, and to the internet nothing but the
primary addresses of instances, which are the public ones here.

    iif port ─► whose source? ─► in the VPC? its port : the subnet's table ─► groups of both ends ─► flow record

Everything is a set, so that the router goes from one state to the next by differences.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final
from zlib import crc32

from coil.kernel.family import IPNetwork
from integration.aws.ec2_state import Interface, Permission, SecurityGroup, Subnet, Target

INTERNET, ON_PREMISES = "internet", "onprem"
"""The router's links to the world outside."""
OUTSIDE: Final = {
    INTERNET: IPv4Address("203.0.113.10"),
    ON_PREMISES: IPv4Address("192.168.50.10"),
}
"""The host behind each; the router has the address 1 there."""
INTERNET6: Final = IPv6Address("2001:db8:113::10")
"""The host in the internet, by IPv6, in which all addresses are known; the router is ::1 there."""
CONTROL: Final = IPv4Network("198.18.0.0/16")
"""Where API servers and EC2 are: reached by everybody, with the router's address."""

_TARGETS: Final = {Target.INTERNET: INTERNET, Target.ON_PREMISES: ON_PREMISES}
_LOCAL_TABLE: Final = 100
_FIRST_SUBNET_TABLE: Final = 1000
_NODE_LINK_LOCAL: Final = "fe80::2"
"""As the router calls the other end of each port; it is in none of the instances."""
_FLOW: Final = {
    4: "{ ip saddr . ip daddr . meta l4proto . th sport . th dport }",
    6: "{ ip6 saddr . ip6 daddr . meta l4proto . th sport . th dport }",
}
_FAMILY: Final = {4: "ip", 6: "ip6"}
_OF_THE_LINK: Final = (IPv6Network("fe80::/10"), IPv6Network("::/128"))
_LEAVING, _ENTERING, _PUBLIC = 1, 2, 4
"""Bits of a packet's mark: what it is allowed to do."""


@dataclass(frozen=True, slots=True, order=True)
class RouterObject:
    """As iproute2 has it: `RouterObject(4, "route", "10.1.0.4 dev p0 table 100")`."""

    version: int
    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class RouterPlan:
    """`objects` are of one IP version each, without a verb; `rules` are for `nft -f`."""

    objects: frozenset["RouterObject"]
    rules: str
    public: frozenset[IPv4Address]
    """The addresses that the internet knows."""


def port_name(interface: str) -> str:
    """The router's link to an interface, by the end of its id."""
    return f"p{interface[-12:]}"


def plan_router(
    interfaces: Collection[Interface], cidrs: Collection[IPNetwork], groups: Mapping[str, SecurityGroup]
) -> RouterPlan:
    """`interfaces` are those that are plugged in, of one VPC that has `cidrs`."""
    ordered = sorted(interfaces, key=lambda each: each.id)
    public = frozenset(each.addresses[0] for each in ordered if each.is_primary)
    subnets = {each.subnet.id: each.subnet for each in ordered}
    objects = {
        RouterObject(4, "rule", f"to {CONTROL} table main priority 50"),
        *(each for cidr in cidrs for each in _cidr_objects(cidr)),
        *(each for subnet in subnets.values() for each in _ways_out(subnet)),
        *(each for interface in ordered for each in _port_objects(interface)),
    }
    rules = "\n".join([*_sets(ordered), *_sources(ordered), *_filter(ordered, groups, public), ""])
    return RouterPlan(frozenset(objects), rules, public)


# --- routes


def _cidr_objects(cidr: IPNetwork) -> Iterator[RouterObject]:
    yield RouterObject(cidr.version, "rule", f"to {cidr} table {_LOCAL_TABLE} priority 100")
    yield RouterObject(cidr.version, "route", f"blackhole {cidr} table {_LOCAL_TABLE}")


def _ways_out(subnet: Subnet) -> Iterator[RouterObject]:
    table = _table(subnet)
    for network, target in subnet.routes:
        link = _TARGETS[target]
        host = OUTSIDE[link] if network.version == 4 else INTERNET6
        yield RouterObject(network.version, "route", f"{network} via {host} dev {link} table {table}")
    yield RouterObject(4, "route", f"blackhole 0.0.0.0/0 metric 9999 table {table}")


def _port_objects(interface: Interface) -> Iterator[RouterObject]:
    port = port_name(interface.id)
    at_once = f"dev {port} onlink table {_LOCAL_TABLE}"
    # Nobody is asked by ARP whose address it is: the VPC knows.
    hops = {4: str(interface.addresses[0]), 6: _NODE_LINK_LOCAL}
    for version in {network.version for network in interface.networks}:
        entry = f"{hops[version]} lladdr {interface.mac} dev {port} nud permanent"
        yield RouterObject(version, "neighbour", entry)
        yield RouterObject(version, "rule", f"iif {port} table {_table(interface.subnet)} priority 200")
    for network in interface.networks:
        yield RouterObject(network.version, "route", f"{network} via {hops[network.version]} {at_once}")


def _table(subnet: Subnet) -> int:
    return _FIRST_SUBNET_TABLE + crc32(subnet.id.encode()) % (1 << 20)


# --- rules
#
# None of them looks anything up in a set: while one generation of rules follows another, the kernel (6.18) may look a
# packet of the old rules up in sets of which it has already taken the elements.


def flow_set(verdict: str, version: int, port: str) -> str:
    """The name of the set that counts an interface's packets: `accepted`, `rejected` by a group, or `spoofed`."""
    return f"{verdict}{version}_{port}"


def _sets(interfaces: Collection[Interface]) -> Iterator[str]:
    yield "flush chain inet vpc sources"
    yield "flush chain inet vpc forward"
    for each in interfaces:
        for version in (4, 6):
            kind = f"type ipv{version}_addr . ipv{version}_addr . inet_proto . inet_service . inet_service"
            for verdict in ("accepted", "rejected", "spoofed"):
                name = flow_set(verdict, version, port_name(each.id))
                yield f"add set inet vpc {name} {{ {kind}; size 65535; flags dynamic; counter; }}"


def _sources(interfaces: Collection[Interface]) -> Iterator[str]:
    for each in interfaces:
        port = port_name(each.id)
        # What is said on the link itself goes nowhere.
        for network in (*each.networks, *_OF_THE_LINK):
            yield _rule("sources", f'iifname "{port}" {_FAMILY[network.version]} saddr {network} accept')
        yield from _refuse("sources", f'iifname "{port}"', "spoofed", port)


def _filter(
    interfaces: Collection[Interface], groups: Mapping[str, SecurityGroup], public: Collection[IPv4Address]
) -> Iterator[str]:
    members = {group: [net for each in interfaces if group in each.groups for net in each.networks] for group in groups}
    yield _rule("forward", "meta mark set 0")
    yield _rule("forward", f"ct state established,related meta mark set {_LEAVING | _ENTERING}")
    for each in interfaces:
        port = port_name(each.id)
        own = [groups[group] for group in each.groups]
        for direction, link, field, permissions in (
            (_LEAVING, "iifname", "daddr", [each for group in own for each in group.egress]),
            (_ENTERING, "oifname", "saddr", [each for group in own for each in group.ingress]),
        ):
            for permission in permissions:
                for match in _matches(permission, field, members):
                    yield _rule("forward", f'{link} "{port}" {match} meta mark set meta mark | {direction}')
    for each in interfaces:
        port = port_name(each.id)
        for direction, link in ((_LEAVING, "iifname"), (_ENTERING, "oifname")):
            yield from _refuse("forward", f'{link} "{port}" meta mark & {direction} == 0', "rejected", port)
    for link, field in (("oifname", "saddr"), ("iifname", "daddr")):
        for address in sorted(public):
            yield _rule("forward", f'{link} "{INTERNET}" ip {field} {address} meta mark set meta mark | {_PUBLIC}')
        yield _rule("forward", f'{link} "{INTERNET}" meta nfproto ipv4 meta mark & {_PUBLIC} == 0 drop')
    for each in interfaces:
        for link in ("iifname", "oifname"):
            port = port_name(each.id)
            yield from _record("forward", f'{link} "{port}"', "accepted", port)


def _matches(permission: Permission, field: str, members: Mapping[str, list[IPNetwork]]) -> Iterator[str]:
    networks = [*permission.networks, *(net for group in permission.groups for net in members.get(group, ()))]
    service = "" if permission.protocol == "-1" else f"meta l4proto {permission.protocol} "
    if permission.protocol in ("tcp", "udp") and permission.ports is not None:
        service += f"th dport {permission.ports[0]}-{permission.ports[1]} "
    for network in networks:
        yield f"{service}{_FAMILY[network.version]} {field} {network}"


def _refuse(chain: str, match: str, verdict: str, port: str) -> Iterator[str]:
    yield from _record(chain, match, verdict, port)
    yield _rule(chain, f"{match} drop")


def _record(chain: str, match: str, verdict: str, port: str) -> Iterator[str]:
    for version, flow in _FLOW.items():
        yield _rule(chain, f"{match} update @{flow_set(verdict, version, port)} {flow}")


def _rule(chain: str, text: str) -> str:
    return f"add rule inet vpc {chain} {text}"
