"""What the gateways' statuses mean to one node: what it carries, and where every policy's traffic goes. Pure.

The status of an EgressGateway is one document, so that a move is one event for all nodes; the statuses of its policies
follow later and are asked only for what no node carries.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from coil.crd.egress_gateway import EgressGateway, EipEntry, GatewayNode, PolicyRef
from coil.crd.names import NodeName
from coil.eip.lease_renewal import held_entries, known_term
from coil.kernel.family import IPAddress


@dataclass(frozen=True, slots=True)
class EgressPath:
    """How a policy's traffic leaves the cluster. `node` None: not at all at the moment, `moving` says that this is
    because its address is between two nodes, or not yet with the one that it is `given` to. An entry without addresses
    (useNodeIP) has none here.
    """

    node: NodeName | None
    ipv4: IPv4Address | None = None
    ipv6: IPv6Address | None = None
    moving: bool = False
    given: NodeName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """For which term a node may carry addresses, and which revisions it has applied already, by the gateways' UIDs.

    `of_nodes` are the addresses of all Nodes. As EIPs, the node's own would cut it off from its API server and kubelet,
    and another's would draw what is sent to that Node here. So the node takes none of them, whatever a status says: the
    traffic of their policies is held back.
    """

    node: NodeName
    term: int | None
    applied: Mapping[str, int]
    of_nodes: frozenset[IPAddress] = frozenset()

    def carries(self, gateway: EgressGateway, listed: GatewayNode) -> bool:
        """Whether what `gateway` lists for the node counts now. See `coil.eip.lease_renewal.held_entries`."""
        stale = gateway.status.revision < self.applied.get(gateway.metadata.uid, 0)
        return self.term is not None and listed.term == self.term and not stale

    def refuses(self, entry: EipEntry) -> bool:
        """Whether an address of it is a Node's."""
        return not self.of_nodes.isdisjoint(eip_addresses(entry))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAssignment:
    """`wanted`: the node needs a Lease. `known_term`: the highest that a status names for it. `addresses`: those that
    it is to have, `refused` those that it may not have, as they are Nodes'. `revisions`: by UID, of the gateways whose
    status names it; `leaves`: some address is to leave it.
    """

    wanted: bool
    known_term: int
    addresses: frozenset[IPAddress]
    refused: frozenset[IPAddress]
    revisions: Mapping[str, int]
    leaves: bool


def plan_assignment(
    gateways: Collection[EgressGateway], lease: LeaseState, *, labels: Mapping[str, str] | None
) -> NodeAssignment:
    """What the node has to do with the gateways. `labels` are its Node's, None if that does not exist."""
    node, term = lease.node, lease.term
    wanted, leaves = False, False
    addresses: set[IPAddress] = set()
    refused: set[IPAddress] = set()
    revisions: dict[str, int] = {}
    for gateway in gateways:
        selector = gateway.spec.node_selector.selector
        # The API server refuses empty selectors; one that slipped through selects nothing.
        wanted |= labels is not None and not selector.empty and selector.selects(labels)
        for listed in gateway.status.node_list:
            if listed.name == node:
                wanted |= bool(listed.eips)
                leaves |= any(eip.leaving for eip in listed.eips)
                revisions[gateway.metadata.uid] = gateway.status.revision
        if term is not None:
            for eip in held_entries(gateway, node, term=term, applied=lease.applied):
                (refused if lease.refuses(eip) else addresses).update(eip_addresses(eip))
    return NodeAssignment(
        wanted=wanted,
        known_term=known_term(gateways, node),
        addresses=frozenset(addresses),
        refused=frozenset(refused),
        revisions=revisions,
        leaves=leaves,
    )


def plan_paths(gateways: Iterable[EgressGateway], lease: LeaseState) -> dict[PolicyRef, EgressPath]:
    """The way of every policy that some status names. One that has come counts before one that leaves.

    What a status gives to the node without that it may carry it is on the way: its traffic must not leave with the
    node's own address.
    """
    paths: dict[PolicyRef, EgressPath] = {}
    for gateway in gateways:
        for listed in gateway.status.node_list:
            counts = listed.name != lease.node or lease.carries(gateway, listed)
            for eip in listed.eips:
                stays = counts and not eip.leaving and not (listed.name == lease.node and lease.refuses(eip))
                ipv4, ipv6 = _pair(eip)
                node = NodeName(listed.name)
                given = None if stays or eip.leaving else node
                path = EgressPath(node if stays else None, ipv4, ipv6, moving=not stays, given=given)
                for policy in eip.policies:
                    if stays or policy not in paths:
                        paths[policy] = path
    return paths


def carrying_nodes(gateways: Iterable[EgressGateway]) -> frozenset[NodeName]:
    """The nodes that some status gives anything to."""
    return frozenset(NodeName(entry.name) for gateway in gateways for entry in gateway.status.node_list if entry.eips)


def eip_addresses(entry: EipEntry) -> Iterator[IPAddress]:
    """Its addresses; none for useNodeIP, and nothing for what is no address."""
    yield from (address for address in _pair(entry) if address is not None)


def _pair(entry: EipEntry) -> tuple[IPv4Address | None, IPv6Address | None]:
    ipv4, ipv6 = parse_address(entry.ipv4), parse_address(entry.ipv6)
    return (ipv4 if isinstance(ipv4, IPv4Address) else None, ipv6 if isinstance(ipv6, IPv6Address) else None)


def parse_address(text: str) -> IPAddress | None:
    """The address, None for anything else."""
    if not text:
        return None
    try:
        return ip_address(text)
    except ValueError:
        return None
