"""What a client's namespace consists of: tunnels to its gateways, and the rules and routes that lead into them.

Policy routing asks in this order (specification, section 4):

    1000   replies to what came in by the uplink      ─► 1000 + its index    (`reply_plan`, if wanted)
    1800   the link-local network                     ─► main
    1900   everything                                 ─► 117: destinations that are inside private networks
    2000…  the private networks                       ─► main: nodes, pods, Services
    2100   everything                                 ─► 118: all other destinations

What must not leave by the uplink and has no tunnel (`ClientSpec.blocked`) has a route of type "unreachable" in the
table where its tunnel's would be: the lookup ends there, the narrowest destination still counts, and programs get
EHOSTUNREACH at once instead of a timeout. A tunnel's route takes its place in one step, and the other way round.

A tunnel's own packets are addressed to its gateway, and must leave by the uplink. Where a destination contains a
gateway that no rule before it takes away, the gateway is thrown out of that table: the lookup goes on. So are the
cluster's networks that are not private (`ClientSpec.cluster`), where a destination contains them.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from coil.egress.gateway import UPLINK, ClientSpec, Gateway, Replies, TunnelPolicy, Uplink
from coil.egress.private_network import LINK_LOCAL_NETWORKS, PRIVATE_NETWORKS, is_private, is_within
from coil.egress.reply_plan import REPLY_PRIORITY, plan_reply_marks, plan_reply_routes, plan_reply_rules
from coil.egress.router_plan import source_port_number
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.link import LOOPBACK, LinkName, Sysctl
from coil.kernel.nft_table import NftTable
from coil.kernel.route import Route, RouteTable, RouteType
from coil.kernel.rule import Rule, RuleClaim
from coil.kernel.tunnel import CatchAll, FouPort, Tunnel, catch_all, tunnel_name


def covers(network: IPNetwork, address: IPAddress) -> bool:
    """True if the address is in the network."""
    return address in network  # of another family it is not


LINK_LOCAL_PRIORITY: Final = 1800
PRIVATE_PRIORITY: Final = 1900
MAIN_PRIORITY: Final = 2000
"""The first of the private networks; the others follow."""
PUBLIC_PRIORITY: Final = 2100

_NAMES: Final = {Family.IPV4: "IPv4", Family.IPV6: "IPv6"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayProblem:
    """Something that a gateway was asked for and that cannot be, in a sentence. `unserved`: the pod cannot reach it
    through any tunnel, and would use its own address.
    """

    gateway: str
    text: str
    unserved: bool = False

    def __str__(self) -> str:
        return f"{self.gateway}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """All that is to be ours in a client's namespace, and what was left out."""

    sysctls: tuple[Sysctl, ...] = ()
    fou_ports: tuple[FouPort, ...] = ()
    catch_alls: tuple[CatchAll, ...] = ()
    tunnels: tuple[Tunnel, ...] = ()
    routes: tuple[Route, ...] = ()
    nft_table: NftTable | None = None
    rules: tuple[Rule, ...] = ()
    problems: tuple[GatewayProblem, ...] = ()


def plan_client(spec: ClientSpec, uplink: Uplink, present: Collection[Route] = ()) -> ClientPlan:
    """Plan a client. Of gateways that name one destination, the first by namespace and name has it; what cannot be is
    among the problems, and the rest is planned nevertheless.

    `present` are the routes that the namespace's tables have; only `block_unclaimed` asks for them.
    """
    draft = _Draft(spec, uplink)
    for gateway in sorted(spec.gateways, key=_order):
        for family in Family:
            draft.add(gateway, family)
    draft.block(spec.blocked)
    if spec.block_unclaimed:
        draft.block(route.destination for route in present if _leads_out(route, spec.policy))
    tunnels = tuple(draft.tunnels.values())
    tunnelled = tuple(family for family in Family if any(tunnel.family is family for tunnel in tunnels))
    families = tuple(family for family in Family if any(route.family is family for route in draft.routes.values()))
    policy = spec.policy
    reply_rules: tuple[Rule, ...] = ()
    reply_routes: tuple[Route, ...] = ()
    nft_table = None
    if families and spec.replies is Replies.WHERE_THEY_CAME_FROM:
        reply_rules = plan_reply_rules(uplink, families, policy)
        reply_routes = plan_reply_routes(uplink, families, policy)
        nft_table = plan_reply_marks(uplink)
    return ClientPlan(
        sysctls=plan_client_sysctls(uplink.name, tunnelled),
        fou_ports=tuple(FouPort(family, policy.port) for family in tunnelled),
        # Also where all is blocked: by these links coild finds after a restart what is ours.
        catch_alls=tuple(map(catch_all, families)),
        tunnels=tunnels,
        routes=(*draft.bypasses(), *draft.cluster(), *draft.routes.values(), *reply_routes),
        nft_table=nft_table,
        rules=(*reply_rules, *(rule for family in families for rule in _plan_rules(family, policy))),
        problems=tuple(draft.problems),
    )


def unreachable(network: IPNetwork, *, table: int, protocol: int) -> Route:
    """The route that ends a lookup with "no route to host"."""
    return _special(network, RouteType.UNREACHABLE, table=table, protocol=protocol)


def _special(network: IPNetwork, type_: RouteType, *, table: int, protocol: int) -> Route:
    return Route(
        destination=network,
        # The kernel has IPv6 routes of these types on lo, and IPv4 routes on no link.
        device=LOOPBACK if network.version == 6 else None,
        table=table,
        protocol=protocol,
        type=type_,
    )


def _leads_out(route: Route, policy: TunnelPolicy) -> bool:
    """Whether it is a route of ours for a destination, not one that keeps a gateway out of its tunnel."""
    ours = route.protocol == policy.protocol and route.table in (policy.private_table, policy.public_table)
    return ours and route.type is not RouteType.THROW


def client_rules(policy: TunnelPolicy) -> RuleClaim:
    """Which rules of a client's namespace are ours."""
    own = (LINK_LOCAL_PRIORITY, PRIVATE_PRIORITY, PUBLIC_PRIORITY, REPLY_PRIORITY)
    main = range(MAIN_PRIORITY, MAIN_PRIORITY + max(map(len, PRIVATE_NETWORKS.values())))
    return RuleClaim(protocol=policy.protocol, priorities=frozenset((*own, *main)))


def plan_client_sysctls(uplink: LinkName, families: Collection[Family]) -> tuple[Sysctl, ...]:
    """No reverse path filter, as a router may answer from an address that a tunnel leads to: what it sends arrives by
    the uplink, and what is in it comes out of the flow-based device. (Only IPv4 has such a filter.)

    And no router advertisements: anybody can send one in an encapsulated packet, and it would make a default route.
    """
    filters = ("default", "all", uplink) if Family.IPV4 in families else ()
    deaf = ("default",) if Family.IPV6 in families else ()
    return (*(Sysctl(f"net/ipv4/conf/{name}/rp_filter", "0") for name in filters), *deaf_to_routers(deaf))


def deaf_to_routers(links: Iterable[str]) -> tuple[Sysctl, ...]:
    """What keeps these links from taking routes out of router advertisements (RFC 4861)."""
    return tuple(Sysctl(f"net/ipv6/conf/{name}/accept_ra", "0") for name in links)


def _plan_rules(family: Family, policy: TunnelPolicy) -> Iterable[Rule]:
    def rule(priority: int, table: int, destination: IPNetwork | None = None) -> Rule:
        return Rule(family=family, priority=priority, table=table, protocol=policy.protocol, destination=destination)

    yield rule(LINK_LOCAL_PRIORITY, RouteTable.MAIN, LINK_LOCAL_NETWORKS[family])
    yield rule(PRIVATE_PRIORITY, policy.private_table)
    for number, network in enumerate(PRIVATE_NETWORKS[family]):
        yield rule(MAIN_PRIORITY + number, RouteTable.MAIN, network)
    yield rule(PUBLIC_PRIORITY, policy.public_table)


class _Draft:
    """A plan while gateways are added to it, in their order."""

    def __init__(self, spec: ClientSpec, uplink: Uplink) -> None:
        self._spec = spec
        self._uplink = uplink
        self._families = set(map(Family.of, spec.addresses))
        self._gateways = {address for gateway in spec.gateways for address in gateway.addresses}
        self._owners: dict[IPNetwork, str] = {}
        self.tunnels: dict[LinkName, Tunnel] = {}
        self.routes: dict[IPNetwork, Route] = {}
        self.problems: list[GatewayProblem] = []
        self._unserved: list[IPNetwork] = []

    def add(self, gateway: Gateway, family: Family) -> None:
        """Lead what of the gateway's destinations is of the family into a tunnel to it."""
        wanted = [network for network in gateway.destinations if Family.of(network) is family]
        if not wanted:
            return
        try:
            tunnel = self._tunnel(gateway, family)
        except ValueError as error:
            lost = ", ".join(map(str, wanted))
            unserved = family in self._families
            self.problems.append(
                GatewayProblem(
                    gateway=gateway.name, text=f"{error}; {lost} cannot be reached through it", unserved=unserved
                )
            )
            if unserved and not self._spec.fail_open:
                self._unserved += wanted
            return
        claimed = [network for network in wanted if self._claim(network, gateway)]
        if claimed:
            self.tunnels.setdefault(tunnel.name, tunnel)
        for network in claimed:
            self.routes[network] = self._route(network, tunnel)

    def block(self, networks: Iterable[IPNetwork]) -> None:
        """Make unreachable what of these, and of what had no tunnel, is not routed. To be called after all `add`s."""
        for network in (*networks, *self._unserved):
            if (
                Family.of(network) in self._families
                and network not in self.routes
                and not is_within(network, LINK_LOCAL_NETWORKS[Family.of(network)])
                and not self._is_gateway(network)
            ):
                policy = self._spec.policy
                table = policy.private_table if is_private(network) else policy.public_table
                self.routes[network] = unreachable(network, table=table, protocol=policy.protocol)

    def _is_gateway(self, network: IPNetwork) -> bool:
        return network.prefixlen == network.max_prefixlen and network.network_address in self._gateways

    def _tunnel(self, gateway: Gateway, family: Family) -> Tunnel:
        """Raises ValueError with a sentence where there cannot be one."""
        remote = gateway.address(family)
        local = next((address for address in self._spec.addresses if Family.of(address) is family), None)
        if local is None:
            raise ValueError(f"the pod has no {_NAMES[family]} address")
        if remote is None:
            raise ValueError(f"its Service has no {_NAMES[family]} address")
        if remote in self._spec.addresses:
            raise ValueError(f"its address {remote} is the pod's own")
        name = tunnel_name(remote)
        known = self.tunnels.get(name)
        if known is not None and known.remote != remote:
            raise ValueError(f"the device {name} is that of gateway {known.remote} already")
        return Tunnel(
            name=name,
            local=local,
            remote=remote,
            port=self._spec.policy.port,
            source_port=source_port_number(gateway.source_port, self._spec.policy),
            mtu=self._uplink.tunnel_mtu(family),
        )

    def _claim(self, network: IPNetwork, gateway: Gateway) -> bool:
        """True if the network becomes this gateway's."""
        owner = self._owners.get(network)
        if owner is not None:
            if owner != gateway.name:
                self._report(gateway, f"{network} goes through {owner}, which names it, too")
            return False
        if is_within(network, LINK_LOCAL_NETWORKS[Family.of(network)]):
            self._report(gateway, f"{network} is link-local, which never leaves by a tunnel")
            return False
        if self._is_gateway(network):
            self._report(gateway, f"{network} is the address of a gateway, which is reached without a tunnel")
            return False
        self._owners[network] = gateway.name
        return True

    def _route(self, network: IPNetwork, tunnel: Tunnel) -> Route:
        policy = self._spec.policy
        table = policy.private_table if is_private(network) else policy.public_table
        # A tunnel has no address, so the kernel takes one of the first link that has any: as a rule, of eth0. Where the
        # tunnel starts from another link, the router knows the pod by another address and would drop that.
        source = tunnel.local if policy.uplink != UPLINK else None
        return Route(destination=network, device=tunnel.name, table=table, protocol=policy.protocol, source=source)

    def bypasses(self) -> Iterable[Route]:
        """What keeps the tunnels' own packets out of the tunnels."""
        policy = self._spec.policy
        for remote in sorted({tunnel.remote for tunnel in self.tunnels.values()}, key=lambda address: address.packed):
            network = ip_network(remote)
            for table in (policy.private_table, policy.public_table):
                if table == policy.public_table and is_private(network):
                    continue  # a rule before this table takes it to the main table
                if any(route.table == table and covers(route.destination, remote) for route in self.routes.values()):
                    yield _special(network, RouteType.THROW, table=table, protocol=policy.protocol)

    def cluster(self) -> Iterable[Route]:
        """What keeps packets for the cluster's own networks out of the tunnels. Those that are private have rules."""
        policy = self._spec.policy
        led = [route.destination for route in self.routes.values() if route.table == policy.public_table]
        gateways = {ip_network(tunnel.remote) for tunnel in self.tunnels.values()}
        for network in self._spec.cluster:
            if (
                network not in self.routes
                and network not in gateways  # thrown out already
                and not is_private(network)
                and any(is_within(network, destination) for destination in led)
            ):
                yield _special(network, RouteType.THROW, table=policy.public_table, protocol=policy.protocol)

    def _report(self, gateway: Gateway, text: str) -> None:
        self.problems.append(GatewayProblem(gateway=gateway.name, text=text))


def _order(gateway: Gateway) -> tuple[str, str]:
    namespace, _, name = gateway.name.partition("/")
    return namespace, name
