"""What a router's namespace consists of: the fixed part, and a tunnel and a route for each peer.

    peer ─► FOU port ─► its tunnel ─► forwarding, masquerade ─► uplink ─► the world
    peer ◄─ its tunnel ◄─ table 118 ◄─ rule 2000, "iif eth0" ◄─ uplink ◄─ the world

What comes back is looked up in the peers' table only if it came in by the uplink; what the router itself sends, and
that is what the tunnels wrap, follows the main table. So the wrapped packet never meets the tunnel again.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_network
from typing import Final

from coil.egress.gateway import RouterSpec, SourcePort, TunnelPolicy, Uplink
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, Sysctl, forwarding_sysctls
from coil.kernel.nft_table import (
    SOURCE,
    ChainType,
    Comparison,
    Count,
    Field,
    Hook,
    Match,
    NftChain,
    NftTable,
    Priority,
    Statement,
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
        nft_table=plan_masquerade(spec.addresses, policy.uplink),
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


def plan_masquerade(addresses: Collection[IPAddress], uplink: LinkName) -> NftTable:
    """What leaves by the uplink and is not the router's own is sent under its address, and what belongs to no
    connection is dropped, both counted by family.

    Counted where packets are forwarded: the chain that masquerades sees the first of a connection only.
    """
    masquerades: list[tuple[Statement, ...]] = []
    drops: list[tuple[Statement, ...]] = []
    counts: list[tuple[Statement, ...]] = []
    counters: list[str] = []
    for family in families_of(addresses):
        invalid, masqueraded = (
            counter_name(family, kind) for kind in (NatCounterKind.INVALID, NatCounterKind.MASQUERADED)
        )
        counters += (masqueraded, invalid)
        own = [str(address) for address in addresses if Family.of(address) is family]
        from_others: tuple[Statement, ...] = (
            Match(Field.OUTPUT_LINK, Comparison.IS, uplink),
            *(Match(SOURCE[family], Comparison.IS_NOT, address) for address in own),
        )
        drops.append(
            (
                Match(Field.FAMILY, Comparison.IS, family.name.lower()),
                Match(Field.CONNECTION_STATE, Comparison.AMONG, "invalid"),
                Count(invalid),
                Verdict.DROP,
            )
        )
        counts.append((*from_others, Count(masqueraded)))
        masquerades.append((*from_others, Verdict.MASQUERADE))
    return NftTable(
        name=ROUTER_TABLE,
        counters=tuple(counters),
        chains=(
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
