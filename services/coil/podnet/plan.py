"""Everything that one pod's network consists of.

Both ends of the veth are described alike: a link, and what hangs on it. There are two kinds of pods:

    plan_pod       routed: the pod's end holds its addresses as /32 and /128, the host's end the gateways; each knows
                   the other's addresses only through routes, so no two pods share a broadcast domain
    plan_port      switched: the pod's end is a port of a network with a hardware address that is given, and the host's
                   end holds nothing, as something else connects it to that network
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_interface, ip_network
from typing import TypeAlias

from coil.kernel.family import Family, IPAddress, IPInterface
from coil.kernel.link import Address, LinkGroup, LinkName, MacAddress, Neighbour, Sysctl
from coil.kernel.route import DEFAULT_NETWORKS, Route, RouteProtocol, RouteTable, link_scope
from coil.kernel.rule import Rule
from coil.podnet.host_link import PodAlias, derive_mac, render_alias


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAddresses:
    """The pods' gateways. The same addresses are on the host end of every veth; a family that is None cannot be given
    to pods.
    """

    ipv4: IPv4Interface | None
    ipv6: IPv6Interface | None


LINK_LOCAL_IPV6 = IPv6Interface("fe80::1/64")
LINK_LOCAL = HostAddresses(ipv4=IPv4Interface("169.254.1.1/32"), ipv6=LINK_LOCAL_IPV6)
"""The design document's: the same on every node, and nothing of the node is visible to the pod."""


def node_addresses(internal: Collection[IPAddress]) -> HostAddresses:
    """The Node's InternalIPs as host addresses (`--host-address=node-ip`): the first of each family, as /32
    and /128.
    """
    ipv4 = next((address for address in internal if address.version == 4), None)
    ipv6 = next((address for address in internal if address.version == 6), None)
    return HostAddresses(
        ipv4=IPv4Interface(ipv4) if ipv4 is not None else None,
        ipv6=IPv6Interface(ipv6) if ipv6 is not None else None,
    )


ADDR_GEN_MODE_NONE = "1"
"""IN6_ADDR_GEN_MODE_NONE of linux/if_link.h: the kernel adds no link-local address of its own."""

MIN_MTU = {Family.IPV4: 576, Family.IPV6: 1280}
"""The least that each family works with (RFC 791, RFC 8200); below its own the kernel silently turns IPv6
off.
"""

_Pairs: TypeAlias = list[tuple[IPAddress, IPInterface]]
"""Each address of the pod with the address of the host's end that is its gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnd:
    """One end of a veth and all that is set on it, in the order in which it is set."""

    name: LinkName
    mac: MacAddress
    alias: str
    sysctls: tuple[Sysctl, ...]
    addresses: tuple[Address, ...]
    routes: tuple[Route, ...]
    neighbours: tuple[Neighbour, ...]
    group: LinkGroup = LinkGroup.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One address of the pod with its prefix length, and the gateway of its network, if that has one."""

    interface: IPInterface
    gateway: IPAddress | None

    @property
    def address(self) -> IPAddress:
        return self.interface.ip


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """The veth of one pod. `assignments` has IPv4 first; a pod that is routed has one for each family.

    `nameservers` are for the runtime, which writes the pod's resolv.conf; nothing of them is in the kernel.
    """

    mtu: int
    pod: LinkEnd
    host: LinkEnd
    assignments: tuple[Assignment, ...]
    nameservers: tuple[IPAddress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePolicy:
    """The numbers by which the node's routes are found again: one table of host routes to pods, looked up by
    a rule; `rule_priority` None: by a rule that the address source has made.
    """

    pod_table: int = 116
    rule_priority: int | None = 2000
    export_table: int = 119
    protocol: int = 30


DEFAULT_POLICY = RoutePolicy()


def plan_pod(
    *,
    host_name: LinkName,
    ifname: LinkName,
    alias: PodAlias,
    addresses: tuple[IPv4Address | None, IPv6Address | None],
    mtu: int,
    gateways: HostAddresses = LINK_LOCAL,
    policy: RoutePolicy = DEFAULT_POLICY,
) -> PodPlan:
    """Plan the network of a pod with an IPv4 address, an IPv6 address or both (`mtu` in bytes).

    Raises ValueError for a pod without an address, for a family in which the node has no gateway address, for
    an address that is the gateway itself, for an MTU that a family does not work with and for an alias that
    the kernel would not hold.
    """
    pairs: _Pairs = []
    for address, gateway in zip(addresses, (gateways.ipv4, gateways.ipv6), strict=True):
        if address is None:
            continue
        if gateway is None:
            raise ValueError(f"the node has no address that could be the gateway of {address}")
        if address == gateway.ip:
            raise ValueError(f"{address} is the gateway's own address")
        _refuse_small_mtu(mtu, address)
        pairs.append((address, gateway))
    if not pairs:
        raise ValueError("a pod needs at least one address")
    return PodPlan(
        mtu=mtu,
        pod=_pod_end(ifname, pairs, mac=derive_mac(host_name, end="pod"), host_mac=derive_mac(host_name, end="host")),
        host=_host_end(host_name, pairs, alias=render_alias(alias), policy=policy),
        assignments=tuple(
            Assignment(interface=ip_interface(address), gateway=gateway.ip) for address, gateway in pairs
        ),
    )


def plan_port(
    *,
    host_name: LinkName,
    ifname: LinkName,
    alias: PodAlias,
    mac: MacAddress,
    assignments: Collection[Assignment],
    mtu: int,
    nameservers: Collection[IPAddress] = (),
) -> PodPlan:
    """Plan the veth of a pod that is a port of a network: with the port's hardware address, its addresses with the
    prefix lengths of their subnets, and in each family a default route by the first gateway there is.

    The host's end has no address, and the node takes no packet from it, so that a pod reaches the node and what is
    behind it by its network only. Raises ValueError as `plan_pod` does.
    """
    if not assignments:
        raise ValueError("a pod needs at least one address")
    gateways: dict[Family, IPAddress] = {}
    for assignment in assignments:
        _refuse_small_mtu(mtu, assignment.address)
        if assignment.gateway is not None:
            gateways.setdefault(Family.of(assignment.gateway), assignment.gateway)
    # A network has more routers than the subnet's: any other port can advertise itself as one.
    settings = {"accept_ra": "0"}
    if any(assignment.address.version == 6 for assignment in assignments):
        settings |= _IPV6_AT_ONCE
    pod = LinkEnd(
        name=ifname,
        mac=mac,
        alias="",
        sysctls=_ipv6_sysctls(ifname, settings),
        addresses=tuple(Address(ifname, assignment.interface) for assignment in assignments),
        routes=tuple(
            Route(destination=DEFAULT_NETWORKS[family], gateway=gateway, device=ifname)
            for family, gateway in gateways.items()
        ),
        neighbours=(),
    )
    host = LinkEnd(
        name=host_name,
        mac=derive_mac(host_name, end="host"),
        alias=render_alias(alias),
        sysctls=(*_ipv6_sysctls(host_name, {"disable_ipv6": "1"}), *_ipv4_sysctls(host_name, _IPV4_DEAF)),
        addresses=(),
        routes=(),
        neighbours=(),
    )
    ordered = sorted(assignments, key=lambda assignment: Family.of(assignment.address))
    return PodPlan(mtu=mtu, pod=pod, host=host, assignments=tuple(ordered), nameservers=tuple(nameservers))


def plan_pod_routes(
    host_name: LinkName, addresses: Collection[IPAddress], policy: RoutePolicy = DEFAULT_POLICY
) -> tuple[Route, ...]:
    """The node's routes to a pod's addresses."""
    return tuple(
        _device_route(host_name, address, table=policy.pod_table, protocol=policy.protocol) for address in addresses
    )


def plan_pod_neighbours(host_name: LinkName, addresses: Collection[IPAddress]) -> tuple[Neighbour, ...]:
    """What the node knows of a pod's addresses, so that it need not ask for them, whatever its settings for that are
    (net.ipv4.neigh.default.mcast_solicit), and however many neighbours it has: these are not counted (gc_thresh3).
    """
    mac = derive_mac(host_name, end="pod")
    return tuple(Neighbour(host_name, address, mac) for address in addresses)


def plan_rules(policy: RoutePolicy = DEFAULT_POLICY, families: Collection[Family] = tuple(Family)) -> tuple[Rule, ...]:
    """The lookup of the pod table, once per family; none where it is not this policy's."""
    priority = policy.rule_priority
    if priority is None:
        return ()
    return tuple(
        Rule(family=family, priority=priority, table=policy.pod_table, protocol=policy.protocol) for family in families
    )


_IPV6_AT_ONCE: Mapping[str, str] = {"disable_ipv6": "0", "accept_dad": "0", "accept_ra": "0"}
"""Some container runtimes turn IPv6 off in new namespaces. The pod's addresses carry "no DAD" themselves; the second is
for the link-local address that the kernel adds. The pod's routes are given, and no router has to advertise others.
"""

_IPV4_DEAF: Mapping[str, str] = {"forwarding": "0", "rp_filter": "1", "arp_ignore": "8"}
"""What comes in by the link is neither forwarded nor taken: no route leads back there, so no source is right. Nor does
the node answer for its other links' addresses there (Documentation/networking/ip-sysctl.rst).
"""


def _refuse_small_mtu(mtu: int, address: IPAddress) -> None:
    if mtu < MIN_MTU[Family.of(address)]:
        raise ValueError(f"an MTU of {mtu} is too small for {address}")


def _pod_end(name: LinkName, pairs: _Pairs, *, mac: MacAddress, host_mac: MacAddress) -> LinkEnd:
    routes: list[Route] = []
    for _, gateway in pairs:
        routes.append(_device_route(name, gateway.ip, table=RouteTable.MAIN, protocol=RouteProtocol.BOOT))
        default = DEFAULT_NETWORKS[Family.of(gateway)]
        routes.append(Route(destination=default, gateway=gateway.ip, device=name))
    return LinkEnd(
        name=name,
        mac=mac,
        alias="",
        sysctls=_ipv6_sysctls(name, _IPV6_AT_ONCE if _has_ipv6(pairs) else {}),
        addresses=tuple(Address(name, ip_interface(address)) for address, _ in pairs),
        routes=tuple(routes),
        neighbours=tuple(Neighbour(name, gateway.ip, host_mac) for _, gateway in pairs),
    )


def _host_end(
    name: LinkName,
    pairs: _Pairs,
    *,
    alias: str,
    policy: RoutePolicy,
) -> LinkEnd:
    pod_addresses = [address for address, _ in pairs]
    addresses = [gateway for _, gateway in pairs]
    settings = {"accept_ra": "0"}  # without IPv6 as well: no pod may advertise routes to its node
    if _has_ipv6(pairs):
        # A hardened host has IPv6 on its uplink alone (net.ipv6.conf.default.disable_ipv6).
        settings["disable_ipv6"] = "0"
        # One link-local address of ours, which is there at once, instead of the kernel's. A gateway that is the node's
        # address does not do: the node asks for a pod's hardware address, to forward to it, from a link-local one.
        settings["addr_gen_mode"] = ADDR_GEN_MODE_NONE
        if not any(gateway.version == 6 and gateway.is_link_local for gateway in addresses):
            addresses.append(LINK_LOCAL_IPV6)
    return LinkEnd(
        name=name,
        mac=derive_mac(name, end="host"),
        alias=alias,
        # What comes in by a link is forwarded only if the link's own setting says so; it takes that from the default.
        sysctls=(*_ipv6_sysctls(name, settings), *_ipv4_sysctls(name, {"forwarding": "1"} if _has_ipv4(pairs) else {})),
        addresses=tuple(Address(name, address) for address in addresses),
        routes=plan_pod_routes(name, pod_addresses, policy),
        neighbours=plan_pod_neighbours(name, pod_addresses),
        group=LinkGroup.POD,
    )


def _has_ipv6(pairs: _Pairs) -> bool:
    return any(address.version == 6 for address, _ in pairs)


def _has_ipv4(pairs: _Pairs) -> bool:
    return any(address.version == 4 for address, _ in pairs)


def _ipv6_sysctls(name: LinkName, settings: Mapping[str, str]) -> tuple[Sysctl, ...]:
    return tuple(Sysctl(f"net/ipv6/conf/{name}/{key}", value) for key, value in settings.items())


def _ipv4_sysctls(name: LinkName, settings: Mapping[str, str]) -> tuple[Sysctl, ...]:
    return tuple(Sysctl(f"net/ipv4/conf/{name}/{key}", value) for key, value in settings.items())


def _device_route(name: LinkName, address: IPAddress, *, table: int, protocol: int) -> Route:
    network = ip_network(address)
    return Route(destination=network, device=name, table=table, protocol=protocol, scope=link_scope(network))
