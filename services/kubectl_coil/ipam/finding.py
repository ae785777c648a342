"""What can be wrong with addresses, found by comparing who should know of them. Pure.

    Evidence ─► compare ─► Finding

Compared are the API server's pools, blocks and pods, the ledger of each coild, and its node's routes. All are read one
after the other, so whatever is just changing looks like a finding: who asks looks again (`kubectl_coil.ipam.check`).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address, ip_network
from typing import Final

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import AddressPool
from coil.crd.builtin import Pod
from coil.kernel.family import IPAddress, IPNetwork
from coil.page.node_document import AddressState, BlockUse, NodeDocument
from coil.page.node_dump import NamespaceDump, RouteDump
from kubectl_coil.ipam.addresses import addresses_of, networks_of


class FindingKind(StrEnum):
    HELD_TWICE = "HeldTwice"
    """Two pods, nodes or blocks have one address."""
    LEAKED = "Leaked"
    """A node's coild has given an address away that neither a pod nor the kernel has."""
    POD_GONE = "PodGone"
    """The node has an address for a pod of which the API server does not know."""
    NOT_IN_LEDGER = "NotInLedger"
    """A pod has an address that its node's coild takes for free."""
    OUTSIDE_POOL = "OutsidePool"
    """A block or a pod has addresses that are not its pool's or its node's."""
    ABSENT_NODE = "AbsentNode"
    """A block belongs to a node that does not exist."""
    BLOCK_NOT_IN_LEDGER = "BlockNotInLedger"
    """The API server and the node's coild know different blocks."""
    BLOCK_WITHOUT_ROUTE = "BlockWithoutRoute"
    ROUTE_WITHOUT_BLOCK = "RouteWithoutBlock"
    ADDRESS_WITHOUT_ROUTE = "AddressWithoutRoute"
    """The node has no route to a pod."""
    ROUTE_WITHOUT_ADDRESS = "RouteWithoutAddress"
    """The node has a route to an address that nobody has."""


REMEDIES: Final[Mapping[FindingKind, str]] = {
    FindingKind.HELD_TWICE: "delete the younger of both; for a report, keep coild's logs and what `ipam show` prints",
    FindingKind.LEAKED: "restart the node's coild, which takes back what no pod has",
    FindingKind.POD_GONE: "look for its container on the node (crictl ps); restart kubelet and coild if there is none",
    FindingKind.NOT_IN_LEDGER: "restart the node's coild, which adopts what the kernel has; or recreate the pod",
    FindingKind.OUTSIDE_POOL: "recreate the pods that have the addresses, then delete the block if it is empty",
    FindingKind.ABSENT_NODE: "coil-ipam-controller deletes such blocks; if they stay, see its log",
    FindingKind.BLOCK_NOT_IN_LEDGER: "see the log of the node's coild, and the Events of the block",
    FindingKind.BLOCK_WITHOUT_ROUTE: "see the Node's condition CoilNodeStateRemoved, and who changes the table",
    FindingKind.ROUTE_WITHOUT_BLOCK: "see the log of the node's coild; delete the route if no program owns it",
    FindingKind.ADDRESS_WITHOUT_ROUTE: "see the Node's condition CoilNodeStateRemoved; recreate the pod if it stays",
    FindingKind.ROUTE_WITHOUT_ADDRESS: "see the log of the node's coild; delete the route if no program owns it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`nodes` are those whose ledger and kernel show it; none where the API server's objects do."""

    kind: FindingKind
    subject: str
    message: str
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """What a node knows. `kernel` is None where there was too much of it to be read."""

    ledger: NodeDocument
    kernel: NamespaceDump | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """`pods` are those with a network of their own; one that starts shows no addresses yet. `ledgers` may lack nodes;
    those are not judged.
    """

    pools: Sequence[AddressPool]
    blocks: Sequence[AddressBlock]
    nodes: Collection[str]
    pods: Sequence[Pod]
    ledgers: Mapping[str, NodeEvidence]


def compare(evidence: Evidence) -> list[Finding]:
    """All that the evidence shows, by what it is about."""
    return [
        *_judge_blocks(evidence),
        *_judge_pods(evidence),
        *(finding for node in sorted(evidence.ledgers) for finding in _judge_node(evidence, node)),
        *_judge_ledgers(evidence.ledgers),
    ]


# --- objects


def _judge_blocks(evidence: Evidence) -> Iterator[Finding]:
    pools = {pool.name: pool for pool in evidence.pools}
    spans: list[tuple[IPNetwork, AddressBlock]] = []
    for block in evidence.blocks:
        subject = f"block {block.name}"
        networks = networks_of(block.ipv4, block.ipv6)
        spans += [(network, block) for network in networks]
        if (pool := pools.get(block.pool)) is None:
            yield Finding(kind=FindingKind.OUTSIDE_POOL, subject=subject, message=f"there is no pool {block.pool}")
        else:
            subnets = _subnets(pool)
            for network in networks:
                if not any(_contains(subnet, network) for subnet in subnets):
                    message = f"{network} is in no subnet of the pool {pool.name}"
                    yield Finding(kind=FindingKind.OUTSIDE_POOL, subject=subject, message=message)
        if block.node and block.node not in evidence.nodes:
            yield Finding(kind=FindingKind.ABSENT_NODE, subject=subject, message=f"there is no node {block.node}")
    yield from _judge_overlaps(spans)


def _judge_overlaps(spans: list[tuple[IPNetwork, AddressBlock]]) -> Iterator[Finding]:
    """Of two networks that overlap, one is in the other, and comes after it."""
    outer: tuple[IPNetwork, AddressBlock] | None = None
    for network, block in sorted(spans, key=lambda span: _position(span[0])):
        if outer is not None and network.overlaps(outer[0]):
            message = f"{network} overlaps {outer[0]} of the block {outer[1].name}"
            yield Finding(kind=FindingKind.HELD_TWICE, subject=f"block {block.name}", message=message)
        else:
            outer = network, block


def _judge_pods(evidence: Evidence) -> Iterator[Finding]:
    holders: dict[IPAddress, list[Pod]] = defaultdict(list)
    for pod in evidence.pods:
        for address in addresses_of(pod):
            holders[address].append(pod)
    for address, pods in holders.items():
        if len(pods) > 1:
            names = " and ".join(sorted(map(_name, pods)))
            yield Finding(
                kind=FindingKind.HELD_TWICE, subject=f"address {address}", message=f"the pods {names} have it"
            )
    by_node: dict[str, list[IPNetwork]] = defaultdict(list)
    for block in evidence.blocks:
        by_node[str(block.node)] += networks_of(block.ipv4, block.ipv6)
    subnets = [subnet for pool in evidence.pools for subnet in _subnets(pool)]
    for address, pods in holders.items():
        if not any(address in subnet for subnet in subnets):
            continue  # another network's
        for pod in pods:
            if not any(address in network for network in by_node[pod.spec.node_name]):
                message = f"{address} is in no block of its node {pod.spec.node_name}"
                yield Finding(kind=FindingKind.OUTSIDE_POOL, subject=f"pod {_name(pod)}", message=message)


# --- nodes


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who has an address by the ledger."""

    pod: str
    container: str

    def __str__(self) -> str:
        of = f" of the pod {self.pod}" if self.pod else ""
        return f"the container {self.container[:13]}{of}"


@dataclass(slots=True)
class _Ledger:
    """A node's ledger by addresses."""

    networks: dict[str, list[IPNetwork]] = field(default_factory=dict)
    exported: set[IPNetwork] = field(default_factory=set)
    allocated: dict[IPAddress, _Holder] = field(default_factory=dict)

    @classmethod
    def of(cls, document: NodeDocument) -> "_Ledger":
        ledger = cls()
        for block in (block for pool in document.pools for block in pool.blocks):
            networks: list[IPNetwork] = [each for each in (block.ipv4, block.ipv6) if each is not None]
            ledger.networks[block.name] = networks
            if block.use is not BlockUse.OCCUPIED:
                ledger.exported.update(networks)
            for use in block.used:
                if use.state is AddressState.ALLOCATED:
                    holder = _Holder(use.pod_text or "", use.container or "")
                    ledger.allocated.update({ip_address(text): holder for text in use.texts})
        return ledger


@dataclass(frozen=True, slots=True)
class _Routes:
    pods: set[IPAddress]
    exported: set[IPNetwork]


def _routes(ledger: NodeDocument, kernel: NamespaceDump) -> _Routes | None:
    """Coil's own; None where its coild does not tell which these are."""
    if (tables := ledger.tables) is None:
        return None

    def of(table: int) -> Iterator[RouteDump]:
        return (route for route in kernel.routes if (route.table, route.protocol) == (table, tables.protocol))

    return _Routes(
        {ip_network(route.destination).network_address for route in of(tables.pods)},
        {ip_network(route.destination) for route in of(tables.export)},
    )


@dataclass(frozen=True, slots=True)
class _View:
    """One node, by all that know of it. `here` is who has an address by the API server, `starting` are the pods that
    show none yet; `routed` is None where the kernel's routes are not known.
    """

    node: str
    ledger: _Ledger
    blocks: set[str]
    here: Mapping[IPAddress, Pod]
    starting: set[str]
    routed: _Routes | None

    @classmethod
    def of(cls, evidence: Evidence, node: str) -> "_View":
        known = evidence.ledgers[node]
        pods = [pod for pod in evidence.pods if pod.spec.node_name == node]
        return cls(
            node=node,
            ledger=_Ledger.of(known.ledger),
            blocks={str(block.name) for block in evidence.blocks if block.node == node},
            here={address: pod for pod in pods for address in addresses_of(pod)},
            starting={_name(pod) for pod in pods if not addresses_of(pod)},
            routed=None if known.kernel is None else _routes(known.ledger, known.kernel),
        )

    def finding(self, kind: FindingKind, subject: str, message: str) -> Finding:
        return Finding(kind=kind, subject=subject, message=message, nodes=frozenset({self.node}))


def _judge_node(evidence: Evidence, node: str) -> Iterator[Finding]:
    view = _View.of(evidence, node)
    yield from _judge_node_blocks(view)
    yield from _judge_addresses(view)
    if view.routed is not None:
        yield from _judge_routes(view, view.routed)


def _judge_node_blocks(view: _View) -> Iterator[Finding]:
    for name in sorted(view.blocks - view.ledger.networks.keys()):
        message = f"the coild of {view.node} does not have it"
        yield view.finding(FindingKind.BLOCK_NOT_IN_LEDGER, f"block {name}", message)
    for name in sorted(view.ledger.networks.keys() - view.blocks):
        message = f"the coild of {view.node} has it, and the API server has no such block of the node"
        yield view.finding(FindingKind.BLOCK_NOT_IN_LEDGER, f"block {name}", message)


def _judge_addresses(view: _View) -> Iterator[Finding]:
    node, here, allocated = view.node, view.here, view.ledger.allocated
    own = [network for networks in view.ledger.networks.values() for network in networks]
    for address, pod in here.items():
        if address not in allocated and any(address in network for network in own):
            message = f"the pod {_name(pod)} has it, and the coild of {node} takes it for free"
            yield view.finding(FindingKind.NOT_IN_LEDGER, f"address {address}", message)
    for address, holder in allocated.items():
        subject, has_route = f"address {address}", view.routed is None or address in view.routed.pods
        if address in here and not has_route:
            message = f"{node} has no route to it, and the pod {_name(here[address])} has it"
            yield view.finding(FindingKind.ADDRESS_WITHOUT_ROUTE, subject, message)
        elif holder.pod in view.starting:
            continue  # a kubelet tells of addresses once it has started the containers
        elif address not in here and has_route:
            yield view.finding(FindingKind.POD_GONE, subject, f"{node} has it for {holder}, and no pod there shows it")
        elif address not in here:
            message = f"the coild of {node} has given it to {holder}, and neither a pod nor the kernel has it"
            yield view.finding(FindingKind.LEAKED, subject, message)


def _judge_routes(view: _View, routed: _Routes) -> Iterator[Finding]:
    exported, allocated = view.ledger.exported, view.ledger.allocated
    for network in _sorted(exported - routed.exported):
        message = f"{view.node} does not export its block"
        yield view.finding(FindingKind.BLOCK_WITHOUT_ROUTE, f"network {network}", message)
    for network in _sorted(routed.exported - exported):
        message = f"{view.node} exports it, and has no such block"
        yield view.finding(FindingKind.ROUTE_WITHOUT_BLOCK, f"network {network}", message)
    for address in sorted(routed.pods - allocated.keys(), key=lambda each: (each.version, int(each))):
        message = f"{view.node} has a route to it in its table of pods, and nobody has it"
        yield view.finding(FindingKind.ROUTE_WITHOUT_ADDRESS, f"address {address}", message)


def _judge_ledgers(ledgers: Mapping[str, NodeEvidence]) -> Iterator[Finding]:
    """What two nodes have given away."""
    holders: dict[IPAddress, list[str]] = defaultdict(list)
    for node, known in sorted(ledgers.items()):
        for address in _Ledger.of(known.ledger).allocated:
            holders[address].append(node)
    for address, nodes in holders.items():
        if len(nodes) > 1:
            message = f"the coilds of {' and '.join(nodes)} have given it away"
            yield Finding(
                kind=FindingKind.HELD_TWICE, subject=f"address {address}", message=message, nodes=frozenset(nodes)
            )


# --- parts


def _subnets(pool: AddressPool) -> list[IPNetwork]:
    return [network for subnet in pool.spec.subnets for network in networks_of(subnet.ipv4, subnet.ipv6)]


def _contains(network: IPNetwork, other: IPNetwork) -> bool:
    return network.version == other.version and other.subnet_of(network)  # type: ignore[arg-type]  # of one family here


def _position(network: IPNetwork) -> tuple[int, int, int]:
    return network.version, int(network.network_address), network.prefixlen


def _sorted(networks: Iterable[IPNetwork]) -> list[IPNetwork]:
    return sorted(networks, key=_position)


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
