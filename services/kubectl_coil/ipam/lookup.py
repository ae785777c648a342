"""Reads what `kubectl coil ipam show` is about, and no more: of pods only those of a node, or the one that was named.

    target ─► look_up ─► cluster.Reader ─► describe ─► IpamDocument

Who has an address is what pods' `status.podIPs` say. Which addresses are free, or cooling down, only the coild of the
node knows; its page shows that (docs/inspection.md).
"""

from collections.abc import Callable, Container, Iterable, Sequence
from ipaddress import ip_address, ip_network
from typing import Final, TypeVar

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.builtin import NODES, PODS, Pod
from coil.crd.names import LABEL_NODE, LABEL_POOL
from coil.kernel.family import IPAddress, IPNetwork
from coil.page.cluster_document import UseCounts, state_of
from kubectl_coil.cluster import Reader
from kubectl_coil.ipam.document import BlockDocument, IpamDocument, IpamPoolDocument, PodDocument
from kubectl_coil.ipam.target import AddressTarget, NodeTarget, PodTarget, PoolTarget, Target

ENDED: Final = frozenset({"Succeeded", "Failed"})
"""Phases of pods whose addresses may be others' by now."""

T = TypeVar("T")


async def look_up(cluster: Reader, target: Target | None) -> IpamDocument:
    """What there is about the target; about everything if it is None. Raises ApiError, NotFoundError among them."""
    match target:
        case None:
            return await _overview(cluster)
        case PoolTarget(name):
            return await _pool(cluster, name, asked=str(target))
        case NodeTarget(name):
            return await _node(cluster, name, asked=str(target))
        case PodTarget(namespace, name):
            return await _pod(cluster, namespace, name, asked=str(target))
        case AddressTarget(address):
            return await _address(cluster, address)


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


async def _node(cluster: Reader, name: str, *, asked: str) -> IpamDocument:
    await cluster.get(NODES, name)
    blocks = await cluster.list(ADDRESS_BLOCKS, labels=f"{LABEL_NODE}={name}")
    pods = await _pods_of(cluster, name)
    return IpamDocument(
        asked=asked,
        pools=(),
        blocks=tuple(_describe_block(block, {name}, pods) for block in _in_order(blocks)),
        pods=tuple(_describe_pod(pod, blocks) for pod in pods),
        note="" if blocks else "the node has no block: no pod on it has asked for an address",
    )


async def _pod(cluster: Reader, namespace: str, name: str, *, asked: str) -> IpamDocument:
    pod = await cluster.get(PODS, name, namespace=namespace)
    blocks = await cluster.list(ADDRESS_BLOCKS, labels=f"{LABEL_NODE}={pod.spec.node_name}")
    own = [block for block in blocks if any(_has(block, address) for address in _addresses(pod))]
    note = ""
    if pod.spec.host_network:
        note = "the pod is on its node's network, and has the node's addresses"
    elif not pod.status.pod_ips:
        note = "the pod has no address yet: see its Events"
    elif not own:
        note = "no block of its node has the pod's addresses"
    return IpamDocument(
        asked=asked,
        pools=(),
        blocks=tuple(_describe_block(block, {pod.spec.node_name}) for block in own),
        pods=(_describe_pod(pod, own),),
        note=note,
    )


async def _address(cluster: Reader, address: IPAddress) -> IpamDocument:
    pools = [pool for pool in await cluster.list(ADDRESS_POOLS) if _contains(pool, address)]
    blocks = [block for block in await cluster.list(ADDRESS_BLOCKS) if _has(block, address)]
    nodes = {node.metadata.name for node in await cluster.list(NODES)}
    pods = [
        pod
        for node in sorted({str(block.node) for block in blocks if block.node})
        for pod in await _pods_of(cluster, node)
        if address in _addresses(pod)
    ]
    if not pools and not blocks:
        note = "no pool has the address"
    elif not blocks:
        note = "no node has a block with the address: it is free"
    elif not pods:
        note = "no pod has the address: it is free or cooling down, which the node's coild knows"
    else:
        note = ""
    return IpamDocument(
        asked=str(address),
        pools=tuple(_describe_pool(pool, [block for block in blocks if block.pool == pool.name]) for pool in pools),
        blocks=tuple(_describe_block(block, nodes) for block in _in_order(blocks)),
        pods=tuple(_describe_pod(pod, blocks) for pod in pods),
        note=note,
    )


async def _pods_of(cluster: Reader, node: str) -> list[Pod]:
    """Those with addresses of their own, in the order of their names."""
    pods = await cluster.list(PODS, fields=f"spec.nodeName={node}")
    own = [pod for pod in pods if pod.status.pod_ips and not pod.spec.host_network and pod.status.phase not in ENDED]
    return sorted(own, key=lambda pod: (pod.metadata.namespace, pod.metadata.name))


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
        pods=None if pods is None else sum(any(_has(block, each) for each in _addresses(pod)) for pod in pods),
    )


def _describe_pod(pod: Pod, blocks: Iterable[AddressBlock]) -> PodDocument:
    addresses = _addresses(pod)
    block = next((block.name for block in blocks if any(_has(block, address) for address in addresses)), "")
    return PodDocument(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.spec.node_name,
        addresses=tuple(map(str, addresses)),
        block=block,
        since=pod.metadata.creation_timestamp,
    )


def _in_order(blocks: Iterable[AddressBlock]) -> list[AddressBlock]:
    return sorted(blocks, key=lambda block: (block.pool, block.index, block.name))


def _addresses(pod: Pod) -> list[IPAddress]:
    """What is no address is passed over: anybody who may write pods' status writes it."""
    return [address for entry in pod.status.pod_ips if (address := _parse(ip_address, entry.ip)) is not None]


def _has(block: AddressBlock, address: IPAddress) -> bool:
    return any(address in network for network in _networks(block.ipv4, block.ipv6))


def _contains(pool: AddressPool, address: IPAddress) -> bool:
    return any(address in network for subnet in pool.spec.subnets for network in _networks(subnet.ipv4, subnet.ipv6))


def _networks(*texts: str | None) -> list[IPNetwork]:
    return [network for text in texts if text and (network := _parse(ip_network, text)) is not None]


def _parse(parse: Callable[[str], T], text: str) -> T | None:
    try:
        return parse(text)
    except ValueError:
        return None
