"""What a router's namespace consists of: the fixed part, and a tunnel, a route and an element for each peer.

    peer ─► FOU port ─► its tunnel ─► is it its own? ─► forwarding, masquerade ─► uplink ─► the world
    peer ◄─ its tunnel ◄─ table 118 ◄─ rule 2000, "iif eth0" ◄─ uplink ◄─ the world

What comes back is looked up in the peers' table only if it came in by the uplink; what the router itself sends, and
that is what the tunnels wrap, follows the main table. So the wrapped packet never meets the tunnel again.

Anybody can send an encapsulated packet to the router, and what the router forwards leaves under an address that others
trust. So of what comes out of tunnels only that goes on whose source is the peer's whose tunnel it is, and whose
destination is one that the Egress is for; the rest is dropped and counted, before it costs an entry of conntrack. What
comes from a sender without a tunnel arrives by the flow-based link, which is nobody's.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from coil.egress.gateway import RouterSpec, SourcePort, TunnelPolicy, Uplink
from coil.egress.private_network import PRIVATE_NETWORKS, is_within
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.interval import span_word, spans_of, subtract, unite
from coil.kernel.link import LinkName, Sysctl, forwarding_sysctls
from coil.kernel.nft_element import ElementKey, Elements, ElementValue, SetName
from coil.kernel.nft_table import (
    DESTINATION,
    SOURCE,
    ChainType,
    Comparison,
    Count,
    DataType,
    Field,
    Hook,
    Jump,
    Match,
    Member,
    NftChain,
    NftSet,
    NftTable,
    Priority,
    RegularChain,
    Statement,
    TableFamily,
    Verdict,
)
from coil.kernel.route import Route
from coil.kernel.rule import Rule, RuleClaim
from coil.kernel.tunnel import CatchAll, FouPort, Tunnel, catch_all, tunnel_name


class NatCounterKind(StrEnum):
    MASQUERADED = "masqueraded"
    """Forwarded to the uplink under the router's own address."""
    INVALID = "invalid"
    """Dropped, because connection tracking makes no sense of it."""
    UNKNOWN_CLIENT = "unknown_client"
    """Out of a tunnel and dropped, because its source is not the client's whose tunnel it is, or no client has it."""
    OTHER_DESTINATION = "other_destination"
    """A client's and dropped, because the Egress is not for its destination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatCounter:
    """One figure of a router, by family and kind; it only ever grows while the namespace lives."""

    family: Family
    kind: NatCounterKind
    packets: int
    bytes: int


def counter_name(family: Family, kind: NatCounterKind) -> str:
    """The name of the counter in the router's table."""
    return f"{kind}_{family.name.lower()}"


PEER_PRIORITY: Final = 2000
ROUTER_TABLE: Final = "coil_router"
"""The nftables table of a router."""

CLIENTS: Final = {
    Family.IPV4: NftSet(name="clients_ipv4", key=(DataType.LINK, DataType.IPV4)),
    Family.IPV6: NftSet(name="clients_ipv6", key=(DataType.LINK, DataType.IPV6)),
}
"""Peers, by their tunnels."""
DESTINATIONS: Final = {
    Family.IPV4: NftSet(name="destinations_ipv4", key=(DataType.IPV4,), intervals=True),
    Family.IPV6: NftSet(name="destinations_ipv6", key=(DataType.IPV6,), intervals=True),
}
"""What the Egress is for."""
CLIENT_SETS: Final = {family: SetName(TableFamily.INET, ROUTER_TABLE, entry.name) for family, entry in CLIENTS.items()}
DESTINATION_SETS: Final = {
    family: SetName(TableFamily.INET, ROUTER_TABLE, entry.name) for family, entry in DESTINATIONS.items()
}
TUNNEL_TYPES: Final = ("ipip", "ipip6")
"""ARPHRD_TUNNEL and ARPHRD_TUNNEL6: the peers' tunnels and the flow-based links."""

NEVER_FORWARDED: Final[dict[Family, tuple[IPNetwork, ...]]] = {
    Family.IPV4: tuple(
        map(
            IPv4Network,
            (
                *("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4"),
                # Outside the link-local network: Alibaba Cloud, Oracle Cloud, Azure.
                *("100.100.100.200", "192.0.0.192", "168.63.129.16"),
            ),
        )
    ),
    Family.IPV6: tuple(
        map(
            IPv6Network,
            (
                *("::/128", "::1/128", "fe80::/10", "ff00::/8"),
                # Amazon Web Services, Google Cloud.
                *("fd00:ec2::254", "fd20:ce::254"),
            ),
        )
    ),
}
"""What no router leads to, whatever its Egress is for: its own link and itself, groups, and the metadata services of
clouds, which hand out what the machine may do.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPlan:
    """The part of a router that does not depend on its peers, in the order in which it is made."""

    sysctls: tuple[Sysctl, ...]
    fou_ports: tuple[FouPort, ...]
    catch_alls: tuple[CatchAll, ...]
    nft_table: NftTable
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRefusal:
    """A peer that cannot be served, and why."""

    peer: IPAddress
    reason: str

    def __str__(self) -> str:
        return f"no tunnel to {self.peer}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlan:
    """`tunnels` have distinct names; each has a route in `routes`."""

    tunnels: tuple[Tunnel, ...]
    routes: tuple[Route, ...]
    refusals: tuple[PeerRefusal, ...] = ()


def plan_router(spec: RouterSpec) -> RouterPlan:
    """Plan the fixed part for the families that the router has. Raises ValueError for a router without an address."""
    families = families_of(spec.addresses)
    if not families:
        raise ValueError("a router needs at least one address")
    policy = spec.policy
    return RouterPlan(
        sysctls=plan_router_sysctls(families),
        fou_ports=tuple(FouPort(family, policy.port) for family in families),
        catch_alls=tuple(map(catch_all, families)),
        nft_table=plan_table(spec.addresses, policy.uplink),
        rules=tuple(
            Rule(
                family=family,
                priority=PEER_PRIORITY,
                table=policy.public_table,
                protocol=policy.protocol,
                iif=policy.uplink,
            )
            for family in families
        ),
    )


def router_rules(policy: TunnelPolicy) -> RuleClaim:
    """Which rules of a router's namespace are ours."""
    return RuleClaim(protocol=policy.protocol, priorities=frozenset({PEER_PRIORITY}))


def plan_router_sysctls(families: Collection[Family]) -> tuple[Sysctl, ...]:
    """What makes a router of a namespace, to be written before any tunnel is made: forwarding, and no reverse path
    filter, since what comes out of a tunnel would be answered by the uplink.

    In a container without privileges /proc/sys cannot be written; then whoever made the namespace has to do it.
    """
    filters = ("net/ipv4/conf/default/rp_filter", "net/ipv4/conf/all/rp_filter") if Family.IPV4 in families else ()
    return (*forwarding_sysctls(families), *(Sysctl(path, "0") for path in filters))


def plan_table(addresses: Collection[IPAddress], uplink: LinkName) -> NftTable:
    """What comes out of tunnels is a client's own and for a destination of the Egress; what leaves by the uplink and is
    not the router's own is sent under its address; and what belongs to no connection is dropped. All of it is counted
    by family.

    Counted where packets are forwarded: the chain that masquerades sees the first of a connection only.
    """
    masquerades: list[tuple[Statement, ...]] = []
    drops: list[tuple[Statement, ...]] = []
    counts: list[tuple[Statement, ...]] = []
    checks: list[tuple[Statement, ...]] = []
    families = families_of(addresses)
    for family in families:
        counted = {kind: Count(counter_name(family, kind)) for kind in NatCounterKind}
        is_of_family = Match(Field.FAMILY, Comparison.IS, family.name.lower())
        own = [str(address) for address in addresses if Family.of(address) is family]
        from_others: tuple[Statement, ...] = (
            Match(Field.OUTPUT_LINK, Comparison.IS, uplink),
            *(Match(SOURCE[family], Comparison.IS_NOT, address) for address in own),
        )
        drops.append(
            (
                is_of_family,
                Match(Field.CONNECTION_STATE, Comparison.AMONG, "invalid"),
                counted[NatCounterKind.INVALID],
                Verdict.DROP,
            )
        )
        counts.append((*from_others, counted[NatCounterKind.MASQUERADED]))
        masquerades.append((*from_others, Verdict.MASQUERADE))
        is_clients = Match((Field.INPUT_LINK, SOURCE[family]), Comparison.IS, Member(CLIENTS[family].name))
        is_served = Match(DESTINATION[family], Comparison.IS, Member(DESTINATIONS[family].name))
        checks += (
            # What the kernel itself sends by every link that is up, of an IPv6 client: nobody's fault, so not counted.
            (Match(DESTINATION[family], Comparison.IS, _GROUPS[family]), Verdict.DROP),
            (is_clients, is_served, Verdict.RETURN),
            (is_clients, counted[NatCounterKind.OTHER_DESTINATION], Verdict.DROP),
            (is_of_family, counted[NatCounterKind.UNKNOWN_CLIENT], Verdict.DROP),
        )
    from_tunnels = RegularChain(name="from_tunnels", rules=(*checks, (Verdict.DROP,)))
    return NftTable(
        name=ROUTER_TABLE,
        counters=tuple(counter_name(family, kind) for family in families for kind in NatCounterKind),
        sets=tuple(entry for family in families for entry in (CLIENTS[family], DESTINATIONS[family])),
        chains=(
            from_tunnels,
            NftChain(
                name="prerouting",
                type=ChainType.FILTER,
                hook=Hook.PREROUTING,
                priority=Priority.RAW,
                rules=tuple(
                    (Match(Field.INPUT_TYPE, Comparison.IS, kind), Jump(from_tunnels.name)) for kind in TUNNEL_TYPES
                ),
            ),
            NftChain(
                name="forward",
                type=ChainType.FILTER,
                hook=Hook.FORWARD,
                priority=Priority.FILTER,
                rules=(*drops, *counts),
            ),
            NftChain(
                name="postrouting",
                type=ChainType.NAT,
                hook=Hook.POSTROUTING,
                priority=Priority.SRCNAT,
                rules=tuple(masquerades),
            ),
        ),
    )


_GROUPS: Final[dict[Family, IPNetwork]] = {
    Family.IPV4: IPv4Network("224.0.0.0/4"),
    Family.IPV6: IPv6Network("ff00::/8"),
}


def client_elements(peers: Iterable[IPAddress]) -> Elements:
    """The elements by which packets of these peers, out of their own tunnels, are let in."""
    elements: dict[SetName, dict[ElementKey, ElementValue]] = {}
    for peer in peers:
        elements.setdefault(CLIENT_SETS[Family.of(peer)], {})[tunnel_name(peer), str(peer)] = None
    return elements


def destination_elements(
    destinations: Collection[IPNetwork], spec: RouterSpec, *, cluster: Collection[IPNetwork] = ()
) -> Elements:
    """The elements by which packets of clients are let go to these destinations.

    As clients have it: a destination that contains private networks, or others of the `cluster`, is not for what is
    inside these, which clients reach without a tunnel; one that is within such a network is for all of itself.
    """
    elements: dict[SetName, dict[ElementKey, ElementValue]] = {}
    for family in families_of(spec.addresses):
        inside = [network for network in (*PRIVATE_NETWORKS[family], *cluster) if Family.of(network) is family]
        wanted = [network for network in destinations if Family.of(network) is family]
        narrow = [network for network in wanted if any(is_within(network, each) for each in inside)]
        never = (*NEVER_FORWARDED[family], *map(ip_network, spec.addresses))
        outside = subtract(spans_of(wanted, family), spans_of(inside, family))
        served = subtract(unite([*outside, *spans_of(narrow, family)]), spans_of(never, family))
        elements[DESTINATION_SETS[family]] = {span_word(span, family): None for span in served}
    return elements


def plan_peers(peers: Collection[IPAddress], spec: RouterSpec, uplink: Uplink, source_port: SourcePort) -> PeerPlan:
    """Plan a tunnel and a route for each peer that the router shares a family with and that it is not itself.

    Of IPv6 peers whose device name is the same, the lowest has it; and none is served where the uplink is too narrow.
    """
    tunnels: dict[LinkName, Tunnel] = {}
    refusals: list[PeerRefusal] = []
    policy = spec.policy
    locals_ = {Family.of(address): address for address in reversed(spec.addresses)}
    for peer in sorted(set(peers) - set(spec.addresses), key=_order):
        local = locals_.get(Family.of(peer))
        if local is None:
            continue
        try:
            mtu = uplink.tunnel_mtu(Family.of(peer))
        except ValueError as error:
            refusals.append(PeerRefusal(peer=peer, reason=str(error)))
            continue
        tunnel = Tunnel(
            name=tunnel_name(peer),
            local=local,
            remote=peer,
            port=policy.port,
            source_port=source_port_number(source_port, policy),
            mtu=mtu,
        )
        if tunnels.setdefault(tunnel.name, tunnel) is not tunnel:
            refusals.append(name_is_taken(peer))
    return PeerPlan(
        tunnels=tuple(tunnels.values()),
        routes=tuple(plan_peer_route(tunnel.remote, policy) for tunnel in tunnels.values()),
        refusals=tuple(refusals),
    )


def name_is_taken(peer: IPAddress) -> PeerRefusal:
    """The refusal where another link has the device name that follows from the peer's address."""
    return PeerRefusal(peer=peer, reason=f"its device name, {tunnel_name(peer)}, is taken by something else")


def plan_peer_route(peer: IPAddress, policy: TunnelPolicy) -> Route:
    """The route to a peer through its tunnel."""
    return Route(
        destination=ip_network(peer), device=tunnel_name(peer), table=policy.public_table, protocol=policy.protocol
    )


def source_port_number(source_port: SourcePort, policy: TunnelPolicy) -> int:
    """The number in the kernel's words, where 0 is the kernel's own choice."""
    return policy.port if source_port is SourcePort.FIXED else 0


def families_of(addresses: Collection[IPAddress]) -> tuple[Family, ...]:
    """The families of the addresses, IPv4 first."""
    present = {Family.of(address) for address in addresses}
    return tuple(family for family in Family if family in present)


def _order(address: IPAddress) -> tuple[int, int]:
    return address.version, int(address)
