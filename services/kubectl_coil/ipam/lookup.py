"""Reads what `kubectl coil ipam show` is about, and no more: of pods only those of a node, or the one that was named.

    target ─► look_up ─┬► cluster.Reader ─► pools, blocks, pods ─┬► IpamDocument
                       └► NodeReader ─► the ledger of a node ────┘

Which pod has an address is what pods' `status.podIPs` say; since when, who had it before, and what is cooling down only
the coild of the node knows. Where it cannot be asked, the rest is told.
"""

from collections.abc import Callable, Container, Iterable, Sequence, Set
from dataclasses import dataclass
from ipaddress import ip_address

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.builtin import NODES, PODS, Pod
from coil.crd.names import LABEL_NODE, LABEL_POOL
from coil.kernel.family import IPAddress
from coil.page.cluster_document import UseCounts, state_of
from coil.page.node_dump import Part
from kubectl_coil.cluster import Reader
from kubectl_coil.ipam.addresses import addresses_of, has_own_addresses, networks_of
from kubectl_coil.ipam.document import (
    BlockDocument,
    IpamDocument,
    IpamPoolDocument,
    LedgerEntryDocument,
    LedgerState,
    PodDocument,
)
from kubectl_coil.ipam.ledger import flatten_ledger
from kubectl_coil.ipam.target import AddressTarget, NodeTarget, PodTarget, PoolTarget, Target
from kubectl_coil.node_reader import NodeReader, NodeUnreadableError, ledger_of


async def look_up(cluster: Reader, nodes: NodeReader, target: Target | None) -> IpamDocument:
    """What there is about the target; about everything if it is None. Raises ApiError, NotFoundError among them."""
    match target:
        case None:
            return await _overview(cluster)
        case PoolTarget(name):
            return await _pool(cluster, name, asked=str(target))
        case NodeTarget(name):
            return await _node(cluster, nodes, name, asked=str(target))
        case PodTarget(namespace, name):
            return await _pod(cluster, nodes, namespace, name, asked=str(target))
        case AddressTarget(address):
            return await _address(cluster, nodes, address)


async def _overview(cluster: Reader) -> IpamDocument:
    pools, blocks = await cluster.list(ADDRESS_POOLS), await cluster.list(ADDRESS_BLOCKS)
    nodes = {node.metadata.name for node in await cluster.list(NODES)}
    return IpamDocument(
        asked="",
        pools=tuple(_describe_pool(pool, blocks) for pool in pools),
        blocks=tuple(_describe_block(block, nodes) for block in _in_order(blocks)),
        pods=(),
        note="" if pools else "there is no AddressPool: pods get no addresses",
    )


async def _pool(cluster: Reader, name: str, *, asked: str) -> IpamDocument:
    pool = await cluster.get(ADDRESS_POOLS, name)
    blocks = await cluster.list(ADDRESS_BLOCKS, labels=f"{LABEL_POOL}={name}")
    nodes = {node.metadata.name for node in await cluster.list(NODES)}
    return IpamDocument(
        asked=asked,
        pools=(_describe_pool(pool, blocks),),
        blocks=tuple(_describe_block(block, nodes) for block in _in_order(blocks)),
        pods=(),
        note="" if blocks else "no node has a block of the pool: no pod has asked for an address of it",
    )


async def _node(cluster: Reader, nodes: NodeReader, name: str, *, asked: str) -> IpamDocument:
    await cluster.get(NODES, name)
    blocks = await cluster.list(ADDRESS_BLOCKS, labels=f"{LABEL_NODE}={name}")
    pods = await _pods_of(cluster, name)
    ledger = await _read_ledgers(nodes, [name])
    return IpamDocument(
        asked=asked,
        pools=(),
        blocks=tuple(_describe_block(block, {name}, pods) for block in _in_order(blocks)),
        pods=tuple(_describe_pod(pod, blocks) for pod in pods),
        ledger=ledger.select(lambda entry: entry.state is not LedgerState.FREE),
        note="" if blocks or ledger.entries else "the node has no block: no pod on it has asked for an address",
        troubles=ledger.troubles,
    )


async def _pod(cluster: Reader, nodes: NodeReader, namespace: str, name: str, *, asked: str) -> IpamDocument:
    pod = await cluster.get(PODS, name, namespace=namespace)
    node, addresses = pod.spec.node_name, addresses_of(pod)
    blocks = await cluster.list(ADDRESS_BLOCKS, labels=f"{LABEL_NODE}={node}")
    own = [block for block in blocks if any(_has(block, address) for address in addresses)]
    note = ""
    ledger = _Ledgers()
    if pod.spec.host_network:
        note = "the pod is on its node's network, and has the node's addresses"
    elif not pod.status.pod_ips:
        note = "the pod has no address yet: see its Events"
    else:
        ledger = await _read_ledgers(nodes, [node])
        if not own and not ledger.about(addresses):
            note = "no block of its node has the pod's addresses"
    return IpamDocument(
        asked=asked,
        pools=(),
        blocks=tuple(_describe_block(block, {node}) for block in own),
        pods=(_describe_pod(pod, own),),
        ledger=ledger.about(addresses),
        note=note,
        troubles=ledger.troubles,
    )


async def _address(cluster: Reader, nodes: NodeReader, address: IPAddress) -> IpamDocument:
    pools = [pool for pool in await cluster.list(ADDRESS_POOLS) if _contains(pool, address)]
    blocks = [block for block in await cluster.list(ADDRESS_BLOCKS) if _has(block, address)]
    known = {node.metadata.name for node in await cluster.list(NODES)}
    owners = sorted({str(block.node) for block in blocks if block.node})
    # Addresses of other sources are in no block: then each pod is looked at.
    candidates = [pod for node in owners or [""] for pod in await _pods_of(cluster, node)]
    pods = [pod for pod in candidates if address in addresses_of(pod)]
    asked = owners or sorted({pod.spec.node_name for pod in pods})
    ledger = await _read_ledgers(nodes, [node for node in asked if node in known])
    entries = ledger.about({address})
    return IpamDocument(
        asked=str(address),
        pools=tuple(_describe_pool(pool, [block for block in blocks if block.pool == pool.name]) for pool in pools),
        blocks=tuple(_describe_block(block, known) for block in _in_order(blocks)),
        pods=tuple(_describe_pod(pod, blocks) for pod in pods),
        ledger=entries,
        note="" if pods else _explain(pools=bool(pools), blocks=bool(blocks), entries=entries),
        troubles=ledger.troubles,
    )


def _explain(*, pools: bool, blocks: bool, entries: Sequence[LedgerEntryDocument] | None) -> str:
    """Why no pod has an address."""
    if not blocks:
        return "no node has a block with the address: it is free" if pools else "no pod has the address"
    if entries is None:
        return "no pod has the address: it is free or cooling down, which the node's coild knows"
    states = {entry.state for entry in entries}
    if LedgerState.ALLOCATED in states:
        return "its node's coild has given the address away, and no pod shows it: the pod is starting or has just ended"
    if LedgerState.COOLING in states:
        return "the address is cooling down: it was given back a moment ago, and no pod gets it yet"
    return "no pod has the address: it is free"


@dataclass(frozen=True, slots=True)
class _Ledgers:
    """What the coilds of some nodes know. `entries` is None if none was asked or none has answered."""

    entries: Sequence[LedgerEntryDocument] | None = None
    troubles: tuple[str, ...] = ()

    def select(self, wanted: Callable[[LedgerEntryDocument], bool]) -> tuple[LedgerEntryDocument, ...] | None:
        return None if self.entries is None else tuple(filter(wanted, self.entries))

    def about(self, addresses: Set[IPAddress]) -> tuple[LedgerEntryDocument, ...] | None:
        return self.select(lambda entry: not addresses.isdisjoint(map(ip_address, entry.addresses)))


async def _read_ledgers(nodes: NodeReader, names: Iterable[str]) -> _Ledgers:
    entries: list[LedgerEntryDocument] | None = None
    troubles: list[str] = []
    for name in names:
        try:
            ledger = ledger_of(await nodes.read(name, [Part.INSPECTION]), name)
        except NodeUnreadableError as error:
            troubles.append(str(error))
        else:
            entries = [*(entries or ()), *flatten_ledger(ledger)]
    return _Ledgers(entries, tuple(troubles))


async def _pods_of(cluster: Reader, node: str) -> list[Pod]:
    """Those with addresses of their own, of one node, or of all for "", in the order of their names."""
    pods = await cluster.list(PODS, fields=f"spec.nodeName={node}" if node else "")
    return sorted(filter(has_own_addresses, pods), key=lambda pod: (pod.metadata.namespace, pod.metadata.name))


def _describe_pool(pool: AddressPool, blocks: Iterable[AddressBlock]) -> IpamPoolDocument:
    """`blocks` are the pool's, or more."""
    return IpamPoolDocument(
        name=pool.name,
        subnets=tuple(text for subnet in pool.spec.subnets for text in (subnet.ipv4, subnet.ipv6) if text),
        blocks=UseCounts.of(pool.status.blocks),
        addresses=UseCounts.of(pool.status.addresses),
        nodes=len({block.node for block in blocks if block.pool == pool.name and block.node}),
    )


def _describe_block(block: AddressBlock, nodes: Container[str], pods: Sequence[Pod] | None = None) -> BlockDocument:
    """`nodes` are those that the cluster has; `pods` all of the block's node, None if they are not known."""
    return BlockDocument(
        name=block.name,
        pool=block.pool,
        node=block.node,
        state=state_of(block, nodes),
        ipv4=block.ipv4,
        ipv6=block.ipv6,
        occupied_by=block.occupied_by,
        pods=None if pods is None else sum(any(_has(block, each) for each in addresses_of(pod)) for pod in pods),
    )


def _describe_pod(pod: Pod, blocks: Iterable[AddressBlock]) -> PodDocument:
    addresses = addresses_of(pod)
    block = next((block.name for block in blocks if any(_has(block, address) for address in addresses)), "")
    return PodDocument(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.spec.node_name,
        addresses=tuple(map(str, addresses)),
        block=block,
        created=pod.metadata.creation_timestamp,
    )


def _in_order(blocks: Iterable[AddressBlock]) -> list[AddressBlock]:
    return sorted(blocks, key=lambda block: (block.pool, block.index, block.name))


def _has(block: AddressBlock, address: IPAddress) -> bool:
    return any(address in network for network in networks_of(block.ipv4, block.ipv6))


def _contains(pool: AddressPool, address: IPAddress) -> bool:
    return any(address in network for subnet in pool.spec.subnets for network in networks_of(subnet.ipv4, subnet.ipv6))
