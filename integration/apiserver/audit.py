"""Compares what there should be, while nothing is under way, with what the kernel and the API server hold.

Everything on one side comes from the results that the plugin printed, everything on the other from iproute2 and the API
server: an address that was leaked, lost or given twice shows as a difference. With no pod alive, nothing must be left.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

from integration.apiserver.bare_node import NAME, BareNode
from integration.apiserver.event_record import EventRecord
from integration.apiserver.kubelet import LivePod
from integration.kernel_state import EXPORT_TABLE, POD_TABLE

LABELS = "coil.cybozu.com"


def find_faults(node: BareNode, pods: Mapping[str, LivePod], pools: Mapping[str, str]) -> list[str]:
    """What is not as it should be, now. `pools` names the pool of each namespace."""
    return [*_pod_faults(node, pods, pools), *_block_faults(node, pods, pools)]


def _pod_faults(node: BareNode, pods: Mapping[str, LivePod], pools: Mapping[str, str]) -> Iterator[str]:
    wanted_links = {
        f"COIL:{pools[pod.fate.namespace]}:{container_id}:eth0": pod.host_link for container_id, pod in pods.items()
    }
    yield from _differences("links", node.kernel.pod_links(), wanted_links)
    wanted_routes = {str(ip_network(address)): pod.host_link for pod in pods.values() for address in pod.addresses}
    yield from _differences("pod routes", node.kernel.destinations(POD_TABLE), wanted_routes)
    for pod in pods.values():
        actual = pod.sandbox.kernel.global_addresses()
        if actual != pod.addresses:
            yield f"{pod.sandbox.pod} has {sorted(actual)} and was given {sorted(pod.addresses)}"


def _block_faults(node: BareNode, pods: Mapping[str, LivePod], pools: Mapping[str, str]) -> Iterator[str]:
    blocks = node.objects("addressblocks")
    exported = set(node.kernel.destinations(EXPORT_TABLE))
    networks = {network for block in blocks for network in networks_of(block)}
    yield from _differences("exported routes", dict.fromkeys(exported), dict.fromkeys(networks))
    addresses = {(pools[pod.fate.namespace], ip_address(address)) for pod in pods.values() for address in pod.addresses}
    for block in blocks:
        held = [ip_network(network) for network in networks_of(block)]
        pool = block["metadata"]["labels"][f"{LABELS}/pool"]
        inside = {(owner, address) for owner, address in addresses for network in held if address in network}
        if not inside:
            yield f"block {block['metadata']['name']} has no pod"
        yield from (f"{address} of pool {owner} is in a block of {pool}" for owner, address in inside if owner != pool)
        if block["metadata"].get("deletionTimestamp"):
            yield f"block {block['metadata']['name']} is being deleted, and stays"
        addresses -= inside
    yield from (f"{address} of pool {pool} is in no block" for pool, address in addresses)
    yield from (f"request {request['metadata']['name']} is left" for request in node.objects("blockrequests"))


def find_record_faults(blocks: EventRecord, requests: EventRecord, pools: Collection[dict[str, Any]]) -> list[str]:
    """What was ever wrong with any block, however short its life."""
    faults: list[str] = []
    owners = {pool["metadata"]["name"]: pool["metadata"]["uid"] for pool in pools}
    asked = requests.first_versions().keys()
    answers = Counter(_label(block, "request") for block in blocks.first_versions().values())
    faults += [f"{count} blocks for the request {uid}" for uid, count in answers.items() if count > 1]
    alive: dict[str, dict[str, Any]] = {}
    for event in blocks.events():
        if event.kind == "DELETED":
            alive.pop(event.name, None)
            continue
        faults += _document_faults(event.object, owners, asked)
        for other in alive.values():
            if other["metadata"]["name"] != event.name and _overlap(other, event.object):
                faults.append(f"blocks {event.name} and {other['metadata']['name']} overlap")
        if event.kind == "ADDED":
            alive[event.name] = event.object
    return faults


def networks_of(block: Mapping[str, Any]) -> list[str]:
    """The networks of a block, of both families."""
    return [block[family] for family in ("ipv4", "ipv6") if family in block]


def _document_faults(block: dict[str, Any], owners: Mapping[str, str], asked: Collection[str]) -> Iterator[str]:
    metadata = block["metadata"]
    name, pool = metadata["name"], _label(block, "pool")
    owner = {
        "apiVersion": f"{LABELS}/v2",
        "kind": "AddressPool",
        "name": pool,
        "uid": owners.get(pool, "no such pool"),
        "controller": True,
        "blockOwnerDeletion": True,
    }
    if metadata.get("ownerReferences") != [owner]:
        yield f"block {name} is owned by {metadata.get('ownerReferences')}"
    if _label(block, "node") != NAME:
        yield f"block {name} is of the node {_label(block, 'node')!r}"
    if _label(block, "request") not in asked:
        yield f"block {name} answers {_label(block, 'request')!r}, which nobody asked"
    if "deletionTimestamp" not in metadata and metadata.get("finalizers") != [LABELS]:
        yield f"block {name} has the finalizers {metadata.get('finalizers')}"


def _label(block: Mapping[str, Any], label: str) -> str:
    text: str = block["metadata"].get("labels", {}).get(f"{LABELS}/{label}", "")
    return text


def _overlap(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    pairs = ((ip_network(one), ip_network(two)) for one in networks_of(left) for two in networks_of(right))
    return any(one.version == two.version and one.overlaps(two) for one, two in pairs)


def _differences(what: str, actual: Mapping[str, object], wanted: Mapping[str, object]) -> Iterator[str]:
    surplus = sorted(f"{key} {value or ''}" for key, value in actual.items() - wanted.items())
    missing = sorted(f"{key} {value or ''}" for key, value in wanted.items() - actual.items())
    if surplus:
        yield f"{what} left over: {', '.join(surplus)}"
    if missing:
        yield f"{what} missing: {', '.join(missing)}"
