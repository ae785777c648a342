"""Whatever gateways a client has: where packets go, and that the kernel gets there from anywhere."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network

from hypothesis import given, settings
from hypothesis import strategies as st

from coil.egress.client_plan import ClientPlan, client_rules, plan_client
from coil.egress.gateway import ClientSpec, Replies, TunnelPolicy, Uplink
from coil.egress.private_network import LINK_LOCAL_NETWORKS, PRIVATE_NETWORKS
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.kernel.route import Route, diff_routes
from coil.kernel.rule import Rule, diff_claimed_rules
from coil.kernel.tunnel import Tunnel, diff_tunnels, tunnel_name
from tests.coil.egress.policy_lookup import MAIN, NOWHERE, lookup
from tests.coil.egress.strategies import client_specs

ETH0 = LinkName("eth0")
UPLINK = Uplink(
    name=ETH0,
    index=2,
    mtu=1500,
    routes=tuple(Route(destination=ip_network(text), device=ETH0) for text in ("0.0.0.0/0", "::/0")),
)
PROBES = [
    ip_address(text)
    for text in (
        *("10.96.0.1", "10.96.0.2", "10.96.0.3", "10.1.2.3", "11.1.1.1", "172.20.0.1", "192.168.10.5", "192.168.11.5"),
        *("203.0.113.5", "203.0.113.200", "198.51.100.7", "8.8.8.8", "169.254.7.7", "169.254.1.1", "10.64.0.2"),
        *("fd96::1", "fd96::2", "fd97::1", "fc01::1", "2001:db8::7", "2001:db8::8", "2600::1", "fe80::1"),
    )
]


@given(client_specs(), st.sampled_from(PROBES))
def test_a_packet_goes_where_the_specification_says(spec: ClientSpec, address: IPAddress) -> None:
    planned = plan_client(spec, UPLINK)
    assert lookup(planned, address) == expected_path(spec, planned, address)


@given(client_specs())
def test_whatever_is_planned_a_flow_based_link_shows_it(spec: ClientSpec) -> None:
    """By that link coild tells after a restart which pods have something of ours."""
    planned = plan_client(spec, UPLINK)
    assert {link.family for link in planned.catch_alls} == {
        *(rule.family for rule in planned.rules),
        *(route.family for route in planned.routes),
        *(tunnel.family for tunnel in planned.tunnels),
    }


def expected_path(spec: ClientSpec, planned: ClientPlan, address: IPAddress) -> str:
    """The specification, read naively: the most specific destination has a packet, but private networks only go to
    destinations inside them, and gateways are reached as if there were no tunnels. The cluster's own networks are
    destinations that lead to the main table. What no tunnel serves is unreachable, or left to the main table where the
    client fails open.
    """
    family = Family.of(address)
    if not any(Family.of(own) is family for own in spec.addresses):
        return MAIN
    served = {tunnel.remote for tunnel in planned.tunnels}
    if address in served or address in LINK_LOCAL_NETWORKS[family]:
        return MAIN
    gateways = {address for gateway in spec.gateways for address in gateway.addresses}
    private = [network for network in PRIVATE_NETWORKS[family] if address in network]
    best: tuple[int, str] | None = None
    unserved = None if spec.fail_open else NOWHERE
    for network in spec.blocked:
        inside = any(network.version == part.version and network.subnet_of(part) for part in private)  # type: ignore[arg-type]
        alone = network.prefixlen == network.max_prefixlen and address in gateways
        if (
            address in network
            and not alone
            and (inside or not private)
            and (best is None or network.prefixlen > best[0])
        ):
            best = network.prefixlen, NOWHERE
    for gateway in sorted(spec.gateways, key=lambda gateway: gateway.name.split("/")):
        remote = gateway.address(family)
        path = tunnel_name(remote) if remote is not None and remote in served else unserved
        if path is None:
            continue
        for network in gateway.destinations:
            inside = any(network.version == part.version and network.subnet_of(part) for part in private)  # type: ignore[arg-type]
            alone = network.prefixlen == network.max_prefixlen and address in gateways
            if address not in network or alone or (private and not inside):
                continue
            if best is None or network.prefixlen > best[0] or (network.prefixlen == best[0] and best[1] == NOWHERE):
                best = network.prefixlen, path
    for network in spec.cluster:
        if address in network and not private and (best is None or network.prefixlen > best[0]):
            best = network.prefixlen, MAIN
    return best[1] if best is not None else MAIN


@given(client_specs(), st.sampled_from(PROBES))
def test_replies_never_meet_a_tunnel(spec: ClientSpec, address: IPAddress) -> None:
    planned = plan_client(spec, UPLINK)
    if planned.nft_table is not None:
        family = Family.of(address)
        if any(rule.family is family for rule in planned.rules):
            assert lookup(planned, address, mark=UPLINK.index) == "eth0"
    else:
        assert spec.replies is Replies.BY_ROUTE or not planned.routes


@given(client_specs(), st.randoms(use_true_random=False))
def test_the_order_of_gateways_and_addresses_does_not_matter(spec: ClientSpec, random: object) -> None:
    gateways, addresses = list(spec.gateways), list(spec.addresses)
    random.shuffle(gateways)  # type: ignore[attr-defined]
    random.shuffle(addresses)  # type: ignore[attr-defined]
    shuffled = replace(spec, addresses=tuple(addresses), gateways=tuple(gateways))
    assert plan_client(shuffled, UPLINK) == plan_client(spec, UPLINK)


@given(client_specs())
def test_every_destination_is_routed_or_reported(spec: ClientSpec) -> None:
    planned = plan_client(spec, UPLINK)
    routed = {route.destination for route in planned.routes}
    for gateway in spec.gateways:
        told = " ".join(problem.text for problem in planned.problems if problem.gateway == gateway.name)
        for network in gateway.destinations:
            assert network in routed or str(network) in told
    places = [(route.table, route.key) for route in planned.routes]
    assert len(places) == len(set(places))


@dataclass
class MemoryKernel:
    """Applies differences, in their order, to sets."""

    tunnels: set[Tunnel] = field(default_factory=set)
    routes: set[Route] = field(default_factory=set)
    rules: list[Rule] = field(default_factory=list)

    def sync(self, planned: ClientPlan) -> bool:
        """What `coil.nat` does with a plan; True if there was anything to do."""
        tunnels = diff_tunnels(self.tunnels, planned.tunnels)
        names = {tunnel.name for tunnel in (*tunnels.changes, *tunnels.deletes)}
        self.tunnels = {tunnel for tunnel in self.tunnels if tunnel.name not in names}
        self.tunnels |= {*tunnels.creates, *tunnels.changes}
        changed = bool(tunnels)
        for table in {route.table for route in (*self.routes, *planned.routes)}:
            changes = diff_routes(_of(self.routes, table), _of(planned.routes, table))
            for route in (*changes.clears, *changes.deletes):
                self.routes.remove(route)
            for route in changes.replaces:
                [there] = [old for old in _of(self.routes, table) if old.key == route.key]
                self.routes.remove(there)
            self.routes |= {*changes.replaces, *changes.adds}
            changed = changed or bool(changes)
        rules = diff_claimed_rules(self.rules, planned.rules, client_rules(TunnelPolicy()))
        for rule in rules.deletes:
            self.rules.remove(rule)
        self.rules += rules.adds
        return changed or bool(rules)

    def holds(self, planned: ClientPlan) -> bool:
        return (self.tunnels, self.routes, sorted(map(str, self.rules))) == (
            set(planned.tunnels),
            set(planned.routes),
            sorted(map(str, planned.rules)),
        )


def _of(routes: Collection[Route], table: int) -> list[Route]:
    return [route for route in routes if route.table == table]


@settings(max_examples=200)
@given(st.lists(client_specs(), min_size=1, max_size=4), st.booleans())
def test_the_kernel_gets_there_from_anywhere_and_then_stays(specs: list[ClientSpec], again: bool) -> None:
    kernel = MemoryKernel()
    for spec in [*specs, specs[0], *(specs if again else [])]:
        planned = plan_client(spec, UPLINK)
        kernel.sync(planned)
        assert kernel.holds(planned)
        assert not kernel.sync(planned)
    kernel.sync(ClientPlan())
    assert (kernel.tunnels, kernel.routes, kernel.rules) == (set(), set(), [])
