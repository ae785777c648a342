"""Routes of address blocks. Pure.

Those of this node's blocks are in a table that a routing daemon reads and announces to the other nodes (`plan_export`).

Those of other nodes' blocks are in the main table, on flat layer 2 networks without a routing daemon: each block leads
to an address of its node, over the link on which it is a neighbour (`plan_node_routes`, between what the API server
knows and the kernel; `coild.routes.sync` carries it out). What cannot be routed is named with its reason, and stands in
the way of nothing else.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import AddressPool
from coil.crd.builtin import INTERNAL_IP, Node
from coil.crd.cidr import parse_cidr, parse_ipv4_cidr, parse_ipv6_cidr
from coil.crd.names import BlockName, NodeName
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.interval import span_of, spans_of
from coil.kernel.link import LOOPBACK, LinkName
from coil.kernel.route import Route, RouteScope, RouteTable, RouteType, link_scope
from coil.podnet.plan import DEFAULT_POLICY, RoutePolicy


def plan_export(blocks: Iterable[IPNetwork], policy: RoutePolicy = DEFAULT_POLICY) -> frozenset[Route]:
    """The exported routes of the node's blocks. They lead to lo: the table is for reading, no rule looks
    packets up in it.
    """
    return frozenset(
        Route(
            destination=block,
            device=LOOPBACK,
            table=policy.export_table,
            protocol=policy.protocol,
            scope=link_scope(block),
        )
        for block in blocks
    )


class Neighbourhood:
    """Which addresses are on a link of this node, as its main table tells.

    Longest prefix match over the routes of one table; of routes to one network, the one of the least metric.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._best: dict[tuple[int, int], dict[int, Route]] = {}
        for route in routes:
            network = route.destination
            entries = self._best.setdefault((network.version, network.prefixlen), {})
            known = entries.get(int(network.network_address))
            if known is None or route.metric < known.metric:
                entries[int(network.network_address)] = route
        self._lengths = sorted(self._best, key=lambda family_and_length: -family_and_length[1])

    def link_to(self, address: IPAddress) -> LinkName | None:
        """The link on which the address is a neighbour; None if it is behind a router, or nowhere."""
        for version, length in self._lengths:
            if version == address.version:
                host_bits = address.max_prefixlen - length
                route = self._best[version, length].get(int(address) >> host_bits << host_bits)
                if route is not None:
                    return route.device if _is_direct(route) else None
        return None


def _is_direct(route: Route) -> bool:
    # An IPv4 route may have an IPv6 gateway (RTA_VIA), which `Route` does not hold; its scope then is not the link's.
    scope = RouteScope.LINK if route.destination.version == 4 else RouteScope.UNIVERSE
    return route.type is RouteType.UNICAST and route.gateway is None and route.scope == scope


class RouteTrouble(StrEnum):
    """Why a network is not routed as it should be; the values are those of a metric's label."""

    NO_NODE = "no_node"
    """No Node has the name that the block is labelled with."""
    NO_ADDRESS = "no_address"
    """The node has no InternalIP of the network's family, or only a link-local one."""
    NOT_ON_LINK = "not_on_link"
    """No link of this node leads to that address without a router: this is not one flat network."""
    FOREIGN_ROUTE = "foreign_route"
    """Another program has a route to the network in the table: it stays. Ours stands beside it if its metric allows."""
    DUPLICATE = "duplicate"
    """Another block has the network: one that is not being deleted comes first, then the one of the lesser name."""
    NODE_ADDRESS = "node_address"
    """A Node has an address in the network. With a route to it, packets for that node would go to the block's."""
    NO_POOL = "no_pool"
    """The network is in no AddressPool: who writes blocks does not decide on any traffic."""
    OCCUPIED = "occupied"
    """The controller has found that a Node or a network of Services is in the block."""
    MALFORMED = "malformed"
    """The block's field is no network."""


@dataclass(frozen=True, slots=True)
class TroubledNetwork:
    """One network of a block, as the block spells it, and what is wrong with its route."""

    trouble: RouteTrouble
    block: BlockName
    node: NodeName
    network: str


@dataclass(frozen=True, slots=True)
class NodeRoutes:
    """What is to be in the main table, and what is not, or not alone."""

    routes: frozenset[Route]
    troubled: tuple[TroubledNetwork, ...]


@dataclass(frozen=True, slots=True)
class _NextHop:
    gateway: IPAddress
    device: LinkName


_NextHops: TypeAlias = Mapping[NodeName, Mapping[Family, _NextHop | RouteTrouble]]


def plan_node_routes(
    blocks: Iterable[AddressBlock],
    nodes: Collection[Node],
    pools: Iterable[AddressPool],
    own: NodeName,
    *,
    others: Collection[Route],
    protocol: int,
) -> NodeRoutes:
    """The routes of `protocol` in the main table of the node `own` to the blocks of all other nodes.

    Reserved blocks are routed like any other, blocks of this node never. `others` are the routes that other protocols
    have in the main table: they tell which addresses are on a link, and which networks are taken.
    """
    hops = _next_hops(nodes, own, Neighbourhood(others))
    inhabited = _NodeAddresses(nodes)
    pooled = _PoolAddresses(pools)
    foreign = {route.destination for route in others}
    taken = {route.key for route in others}
    routes: list[Route] = []
    troubled: list[TroubledNetwork] = []
    for block, text, network in _claim_networks(blocks, own):
        if isinstance(network, RouteTrouble):
            trouble = network
        elif block.node == own:
            continue
        elif network not in pooled:
            trouble = RouteTrouble.NO_POOL
        elif inhabited.has_any_in(network):
            trouble = RouteTrouble.NODE_ADDRESS
        elif block.occupied_by:
            trouble = RouteTrouble.OCCUPIED
        elif isinstance(hop := hops.get(block.node, _NO_NODE)[Family.of(network)], RouteTrouble):
            trouble = hop
        else:
            route = Route(
                destination=network,
                device=hop.device,
                gateway=hop.gateway,
                table=RouteTable.MAIN,
                protocol=protocol,
            )
            if route.key not in taken:
                routes.append(route)
            if network not in foreign:
                continue
            trouble = RouteTrouble.FOREIGN_ROUTE
        troubled.append(TroubledNetwork(trouble, block.name, block.node, text))
    return NodeRoutes(frozenset(routes), tuple(troubled))


class _NodeAddresses:
    """Where Nodes are."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._sorted: dict[Family, list[int]] = {family: [] for family in Family}
        for address in (address for node in nodes for address in node.addresses()):
            self._sorted[Family.of(address)].append(int(address))
        for numbers in self._sorted.values():
            numbers.sort()

    def has_any_in(self, network: IPNetwork) -> bool:
        numbers, first = self._sorted[Family.of(network)], int(network.network_address)
        position = bisect_left(numbers, first)
        return position < len(numbers) and numbers[position] < first + network.num_addresses


class _PoolAddresses:
    """What pools have; a subnet that is malformed is not among it."""

    def __init__(self, pools: Iterable[AddressPool]) -> None:
        networks = list(_pool_networks(pools))
        self._spans = {family: spans_of(networks, family) for family in Family}

    def __contains__(self, network: IPNetwork) -> bool:
        """Whether all of the network is in pools."""
        spans, (first, last) = self._spans[Family.of(network)], span_of(network)
        position = bisect_right(spans, first, key=lambda span: span[0]) - 1
        return position >= 0 and last <= spans[position][1]


def _pool_networks(pools: Iterable[AddressPool]) -> Iterator[IPNetwork]:
    for subnet in (subnet for pool in pools for subnet in pool.spec.subnets):
        for text in filter(None, (subnet.ipv4, subnet.ipv6)):
            with suppress(ValueError):
                yield parse_cidr(text)


_NO_NODE: Mapping[Family, _NextHop | RouteTrouble] = dict.fromkeys(Family, RouteTrouble.NO_NODE)


def _claim_networks(
    blocks: Iterable[AddressBlock], own: NodeName
) -> Iterator[tuple[AddressBlock, str, IPNetwork | RouteTrouble]]:
    """Each network of each block, once: with its block, as text, and read."""
    claimed: set[IPNetwork] = set()
    # This node's own come first: a route to another node must not take their networks.
    for block in sorted(blocks, key=lambda block: (block.node != own, block.metadata.deleting, block.name)):
        for parse, text in ((parse_ipv4_cidr, block.ipv4), (parse_ipv6_cidr, block.ipv6)):
            if text is None:
                continue
            try:
                network = parse(text)
            except ValueError:
                yield block, text, RouteTrouble.MALFORMED
                continue
            yield block, text, RouteTrouble.DUPLICATE if network in claimed else network
            claimed.add(network)


def _next_hops(nodes: Collection[Node], own: NodeName, neighbourhood: Neighbourhood) -> _NextHops:
    addresses = {NodeName(node.metadata.name): node.addresses(INTERNAL_IP) for node in nodes}
    # A node that was renamed may have left an object with the same addresses.
    at_home = frozenset(addresses.get(own, ()))
    return {
        name: {family: _next_hop(family, candidates, at_home, neighbourhood) for family in Family}
        for name, candidates in addresses.items()
        if name != own
    }


def _next_hop(
    family: Family, candidates: Iterable[IPAddress], at_home: frozenset[IPAddress], neighbourhood: Neighbourhood
) -> _NextHop | RouteTrouble:
    trouble = RouteTrouble.NO_ADDRESS
    for address in candidates:
        # A link-local address says nothing without the link it is meant on.
        if Family.of(address) is not family or address.is_link_local:
            continue
        trouble = RouteTrouble.NOT_ON_LINK
        device = neighbourhood.link_to(address)
        if device is not None and address not in at_home:
            return _NextHop(address, device)
    return trouble
