"""Which pods still live on v1's addresses, and which reserved blocks nobody lives in. Pure. For `replace`.

A pod is one of v1 if one of its addresses is in a reserved block: v2 gives nothing from those. So a replacement that
was cut short goes on where it stopped, and a block goes only when its last pod has gone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from coil.crd.address_block import AddressBlock
from coil.crd.builtin import Pod
from coil.crd.cidr import parse_cidr
from coil.crd.names import BlockName, NodeName

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of what stands for a static pod: its end is not the pod's."""
_FINISHED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Replacement:
    """`pods` of v1 by node, in the order of names, without the static ones, which are in `static`.

    `lonely` are those of `pods` that nothing makes anew.
    """

    pods: Mapping[NodeName, tuple[Pod, ...]]
    static: tuple[Pod, ...]
    lonely: tuple[Pod, ...]

    @property
    def count(self) -> int:
        return sum(map(len, self.pods.values()))


def plan_replacement(blocks: Iterable[AddressBlock], pods: Iterable[Pod]) -> Replacement:
    """What is to be replaced for the reserved ones among `blocks`."""
    tenants = [pod for pod, _ in _tenancies(blocks, pods)]
    tenants.sort(key=lambda pod: (pod.spec.node_name, describe_pod(pod)))
    nodes: dict[NodeName, list[Pod]] = {}
    static = tuple(pod for pod in tenants if MIRROR in pod.metadata.annotations)
    for pod in tenants:
        if pod not in static:
            nodes.setdefault(NodeName(pod.spec.node_name), []).append(pod)
    lonely = tuple(
        pod
        for group in nodes.values()
        for pod in group
        if not any(owner.controller for owner in pod.metadata.owner_references)
    )
    return Replacement({node: tuple(group) for node, group in nodes.items()}, static, lonely)


def find_tenants(blocks: Iterable[AddressBlock], pods: Iterable[Pod]) -> dict[BlockName, tuple[Pod, ...]]:
    """Each reserved block, by name, and the pods that live in it; an empty tuple for one that may go."""
    reserved = [block for block in blocks if block.reserved]
    found: dict[BlockName, tuple[Pod, ...]] = {block.name: () for block in reserved}
    for pod, names in _tenancies(reserved, pods):
        for name in names:
            found[name] += (pod,)
    return found


def describe_pod(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _tenancies(blocks: Iterable[AddressBlock], pods: Iterable[Pod]) -> list[tuple[Pod, set[BlockName]]]:
    """Each pod that lives in reserved blocks, with their names.

    A pod of the host's network has its node's address; one that has finished has given its address back.
    """
    # By the first address of each length of prefix, as there are thousands of both.
    names: dict[tuple[int, int, int], BlockName] = {}
    for block in blocks:
        for text in (block.ipv4, block.ipv6) if block.reserved else ():
            if text is not None:
                network = parse_cidr(text)
                names[network.version, network.prefixlen, int(network.network_address)] = block.name
    lengths = {(version, prefixlen) for version, prefixlen, _ in names}
    found: list[tuple[Pod, set[BlockName]]] = []
    for pod in pods:
        if pod.spec.host_network or not pod.spec.node_name or pod.status.phase in _FINISHED:
            continue
        homes: set[BlockName] = set()
        for address in (ip_address(entry.ip) for entry in pod.status.pod_ips):
            for version, prefixlen in lengths:
                if version == address.version:
                    bits = address.max_prefixlen - prefixlen
                    name = names.get((version, prefixlen, int(address) >> bits << bits))
                    homes |= {name} if name is not None else set()
        if homes:
            found.append((pod, homes))
    return found
