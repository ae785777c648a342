"""Whether what was seen is right: the invariants of Coil as sentences about what is wrong. Pure.

There are two standards. `find_lasting_faults` is for a moment of rest: the objects, the kernels, the ledgers and the
pods that are up say the same, to the last route. `find_passing_faults` is for any moment, whatever has just been
killed: what must not be so even for an instant, as far as looks at several places one after the other can tell.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from itertools import combinations

from integration.soak.observation import (
    ALIAS_PREFIX,
    POD_GROUP,
    POD_TABLE,
    Block,
    IPNetwork,
    Kernel,
    Ledger,
    Lookup,
    Objects,
    Observation,
    Pod,
)

RULES = frozenset({Lookup(4, 2000, POD_TABLE), Lookup(6, 2000, POD_TABLE)})


@dataclass(frozen=True, slots=True)
class Suspicion:
    """An address that two nodes seemed to route to pods: one of them may have been read before it moved."""

    address: str
    nodes: tuple[str, ...]


def find_lasting_faults(seen: Observation, pods: Collection[Pod]) -> list[str]:
    """Everything that differs, while nothing is under way and `pods` are up. Empty when all agree."""
    faults = [*_block_faults(seen.objects), *_rest_faults(seen.objects, pods), *_status_faults(seen.objects)]
    for node, kernel in sorted(seen.kernels.items()):
        own = [pod for pod in pods if pod.node == node]
        blocks = [block for block in seen.objects.blocks if block.node == node]
        faults += [f"{node}: {fault}" for fault in _kernel_faults(kernel, own, blocks)]
        if (ledger := seen.ledgers.get(node)) is not None:
            faults += [f"{node}: {fault}" for fault in _ledger_faults(ledger, own, blocks)]
    return faults


def find_passing_faults(objects: Objects) -> list[str]:
    """What is wrong with the API server's objects at any moment."""
    return list(_block_faults(objects))


def find_suspicions(kernels: Mapping[str, Kernel]) -> list[Suspicion]:
    """The pods' addresses that more than one node routes to a pod of its own."""
    holders: dict[str, list[str]] = {}
    for node, kernel in sorted(kernels.items()):
        for network in {network for network, _ in kernel.pod_routes}:
            holders.setdefault(network, []).append(node)
    return [Suspicion(address, tuple(nodes)) for address, nodes in sorted(holders.items()) if len(nodes) > 1]


# --- at any moment


def _block_faults(objects: Objects) -> Iterator[str]:
    pools = {pool.name: pool for pool in objects.pools}
    for block in objects.blocks:
        pool = pools.get(block.pool)
        if pool is None:
            yield f"block {block.name} is of the pool {block.pool!r}, which does not exist"
            continue
        if block.owner != pool.uid:
            yield f"block {block.name} is not owned by its pool {block.pool}"
        if not block.name.startswith(f"{block.pool}-"):
            yield f"block {block.name} is not named after its pool {block.pool}"
        if not block.leaving and not block.finalized:
            yield f"block {block.name} has no finalizer"
        if not block.networks:
            yield f"block {block.name} has no addresses"
        for network in block.networks:
            if network.max_prefixlen - network.prefixlen != pool.bits:
                yield f"block {block.name} has {network}, and its pool has blocks of 2^{pool.bits} addresses"
            if not any(_contains(subnet, network) for subnet in pool.subnets):
                yield f"block {block.name} has {network}, which is not of its pool"
    answers = Counter(block.request for block in objects.blocks)
    yield from (f"{count} blocks answer the request {uid!r}" for uid, count in sorted(answers.items()) if count > 1)
    for left, right in combinations(objects.blocks, 2):
        if any(_overlap(one, other) for one in left.networks for other in right.networks):
            yield f"blocks {left.name} and {right.name} overlap"


# --- at rest


def _rest_faults(objects: Objects, pods: Collection[Pod]) -> Iterator[str]:
    yield from (f"request {name} is left" for name in objects.requests)
    holders: dict[str, Pod] = {}
    for pod in pods:
        for address in pod.addresses:
            other = holders.setdefault(address, pod)
            if other is not pod:
                yield f"{address} is held by {_name(other)} and by {_name(pod)}"
    used: set[str] = set()
    for pod in pods:
        homes = {block.name for address in pod.addresses for block in objects.blocks if _holds(block, address)}
        used |= homes
        if len(homes) != 1:
            yield f"the addresses of {_name(pod)} are in the blocks {sorted(homes)}"
            continue
        home = next(block for block in objects.blocks if block.name in homes)
        if home.node != pod.node:
            yield f"{_name(pod)} has addresses of {home.name}, a block of {home.node}"
        if home.pool != pod.pool:
            yield f"{_name(pod)} is of the pool {pod.pool} and in a block of {home.pool}"
        slots = {_slot(home, address) for address in pod.addresses}
        if len(slots) != 1 or len(pod.addresses) != len(home.networks):
            yield f"{_name(pod)} has {sorted(pod.addresses)}, which is not one slot of {home.name}"
    for block in objects.blocks:
        if block.node not in objects.nodes:
            yield f"block {block.name} is of {block.node!r}, which is no node"
        if block.leaving:
            yield f"block {block.name} is being deleted, and stays"
        if block.name not in used:
            yield f"block {block.name} has no pod"


def _kernel_faults(kernel: Kernel, pods: Iterable[Pod], blocks: Iterable[Block]) -> Iterator[str]:
    pods = list(pods)
    veths = [(veth.alias, veth.name) for veth in kernel.veths if veth.alias.startswith(ALIAS_PREFIX)]
    yield from _differences("links", veths, [(pod.alias, pod.host_link) for pod in pods])
    for veth in kernel.veths:
        if not veth.alias.startswith(ALIAS_PREFIX):
            yield f"an orphan: {veth.name}, alias {veth.alias!r}"
        if veth.group != POD_GROUP:
            yield f"half made: {veth.name}, of the group {veth.group}"
    routes = [(str(ip_network(address)), pod.host_link) for pod in pods for address in pod.addresses]
    yield from _differences("routes to pods", kernel.pod_routes, routes)
    exports = [(str(network),) for block in blocks for network in block.networks]
    yield from _differences("exported routes", [(network,) for network in kernel.exports], exports)
    for rule in RULES:
        if (count := kernel.lookups.count(rule)) != 1:
            yield f"{count} rules {rule.priority} look up {rule.table} for IPv{rule.family}"
    strange = [rule for rule in kernel.lookups if rule.table == POD_TABLE and rule not in RULES]
    yield from (f"a rule of priority {rule.priority} looks up {rule.table}" for rule in strange)


def _ledger_faults(ledger: Ledger, pods: Iterable[Pod], blocks: Iterable[Block]) -> Iterator[str]:
    said = [(container, *sorted(addresses)) for container, addresses in ledger.holders.items()]
    yield from _differences("in the ledger", said, [(pod.container_id, *sorted(pod.addresses)) for pod in pods])
    yield from _differences("the ledger's blocks", [(name,) for name in ledger.blocks], [(b.name,) for b in blocks])


def _status_faults(objects: Objects) -> Iterator[str]:
    for pool in objects.pools:
        if not pool.status:
            continue
        blocks = [block for block in objects.blocks if block.pool == pool.name]
        # One family counts: the other has the same slots.
        family = pool.subnets[0].version
        total = sum(2 ** (net.max_prefixlen - net.prefixlen) for net in pool.subnets if net.version == family)
        wanted = {
            "blocks": {"total": total >> pool.bits, "used": len(blocks)},
            "addresses": {"total": total, "used": len(blocks) << pool.bits},
        }
        for key, value in wanted.items():
            if pool.status.get(key) != value:
                yield f"pool {pool.name} says {key}: {pool.status.get(key)}, and it is {value}"


# --- words


def _differences(what: str, actual: Iterable[tuple[str, ...]], wanted: Iterable[tuple[str, ...]]) -> Iterator[str]:
    there, due = Counter(actual), Counter(wanted)
    if surplus := there - due:
        yield f"{what} left over: {_list(surplus)}"
    if missing := due - there:
        yield f"{what} missing: {_list(missing)}"


def _list(entries: Counter[tuple[str, ...]]) -> str:
    return ", ".join(" ".join(entry) for entry in sorted(entries.elements()))


def _name(pod: Pod) -> str:
    return f"{pod.container_id[:12]} on {pod.node}"


def _holds(block: Block, address: str) -> bool:
    return _slot(block, address) is not None


def _slot(block: Block, address: str) -> int | None:
    parsed = ip_address(address)
    for network in block.networks:
        if parsed in network:
            return int(parsed) - int(network.network_address)
    return None


def _contains(outer: IPNetwork, inner: IPNetwork) -> bool:
    return outer.version == inner.version and _overlap(outer, inner) and outer.prefixlen <= inner.prefixlen


def _overlap(left: IPNetwork, right: IPNetwork) -> bool:
    if left.version != right.version:
        return False
    return left.network_address in right or right.network_address in left
