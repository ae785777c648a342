"""What the scale figures fill the API server with, as prepared calls. Pure.

Nodes are as big as real ones, because a list of 2 000 nodes is mostly what the kubelets wrote into them: the images
they have, their conditions, and who owns which field. Requests are those of coild, and blocks are rendered by the
controller's own code, so the peer writes what the controller writes.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest, BlockRequestSpec, ConditionType
from coil.crd.builtin import NAMESPACES, NODES, Node
from coil.crd.meta import ObjectMeta
from coil.crd.names import ANNOTATION_POOL, LABEL_NODE, NodeName, PoolName
from coil.crd.resource import Resource
from coil.ipam.layout import PlannedBlock
from coil_ipam_controller.block_request_reconciler import render_block
from integration.bench.bare_client import MERGE_PATCH, Call

IMAGES = 50
"""What a kubelet reports at most of the images that a node has (nodeStatusMaxImages)."""

_STAMP = "2026-01-01T00:00:00Z"
_CONDITIONS = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status. AppArmor enabled"),
}


def node_name(number: int) -> NodeName:
    return NodeName(f"rack-{number // 40:02d}-host-{number:05d}")


def create_node(number: int) -> Call:
    """A node with everything that a kubelet tells about it."""
    name = node_name(number)
    resources = {"cpu": "64", "memory": "263843936Ki", "ephemeral-storage": "1843197776Ki", "pods": "110"}
    status = {
        "addresses": [
            {"type": "InternalIP", "address": f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"},
            {"type": "Hostname", "address": name},
        ],
        "capacity": resources,
        "allocatable": resources,
        "conditions": [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": _STAMP,
                "lastTransitionTime": _STAMP,
            }
            for kind, (status, reason, message) in _CONDITIONS.items()
        ],
        "images": [
            {
                "names": [
                    f"registry.example/team-{image % 7}/service-{image:02d}@sha256:{image:064x}",
                    f"registry.example/team-{image % 7}/service-{image:02d}:1.{image}.0",
                ],
                "sizeBytes": 100_000_000 + image,
            }
            for image in range(IMAGES)
        ],
        "nodeInfo": {
            "machineID": f"{number:032x}",
            "systemUUID": f"{number:032x}",
            "bootID": f"{number:032x}",
            "kernelVersion": "6.1.0-38-amd64",
            "osImage": "Debian GNU/Linux 12 (bookworm)",
            "containerRuntimeVersion": "containerd://1.6.20",
            "kubeletVersion": "v1.30.0",
            "kubeProxyVersion": "v1.30.0",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": f"rack-{number // 40:02d}",
    }
    annotations = {
        "node.alpha.kubernetes.io/ttl": "0",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    }
    return _create(NODES, {"metadata": {"name": name, "labels": labels, "annotations": annotations}, "status": status})


def create_namespace(number: int) -> Call:
    """A namespace as tenants have it: some labels, and the pool of its pods."""
    labels = {"team": f"team-{number % 20:02d}", "pod-security.kubernetes.io/enforce": "baseline"}
    metadata = {"name": f"tenant-{number:04d}", "labels": labels, "annotations": {ANNOTATION_POOL: "default"}}
    return _create(NAMESPACES, {"metadata": metadata})


def create_pool(name: PoolName, subnet: str) -> Call:
    """A pool of blocks of 32 addresses."""
    spec = {"blockSizeBits": 5, "subnets": [{"ipv4": subnet}]}
    return _create(ADDRESS_POOLS, {"metadata": {"name": name}, "spec": spec})


def create_request(node: Node, pool: PoolName) -> Call:
    """The request that coild on that node makes."""
    name = node.metadata.name
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid, "controller": False}
    metadata = {"name": f"req-{name}-{pool}", "labels": {LABEL_NODE: name}, "ownerReferences": [owner]}
    return _create(BLOCK_REQUESTS, {"metadata": metadata, "spec": {"nodeName": name, "poolName": pool}})


def create_block(planned: PlannedBlock, *, pool: AddressPool, request: BlockRequest) -> Call:
    """The block that the controller creates."""
    return _create(ADDRESS_BLOCKS, msgspec.to_builtins(render_block(planned, pool=pool, request=request)))


def create_old_block(planned: PlannedBlock, *, pool: AddressPool, number: int) -> Call:
    """A block whose request has long gone, on the node of that number."""
    metadata = ObjectMeta(name="gone", uid=f"00000000-0000-4000-8000-{number:012x}")
    spec = BlockRequestSpec(node_name=node_name(number), pool_name=pool.name)
    return create_block(planned, pool=pool, request=BlockRequest(metadata=metadata, spec=spec))


def answer_request(request: BlockRequest, planned: PlannedBlock, *, pool: AddressPool) -> tuple[Call, Call, Call]:
    """The writes with which the controller answers: the promise, the block, the grant.

    The promise is on condition that the request has not changed; the grant would be, too, but its condition is known
    only from the promise's answer, which a bare client does not read.
    """
    promise = {
        "metadata": {"resourceVersion": request.metadata.resource_version},
        "status": {"addressBlockName": planned.name},
    }
    condition = {
        "type": ConditionType.COMPLETE,
        "status": "True",
        "lastProbeTime": _STAMP,
        "lastTransitionTime": _STAMP,
    }
    grant = {"status": {"addressBlockName": planned.name, "conditions": [condition]}}
    path = BLOCK_REQUESTS.path(name=request.metadata.name, subresource="status")
    return (
        Call("PATCH", path, msgspec.json.encode(promise), MERGE_PATCH),
        create_block(planned, pool=pool, request=request),
        Call("PATCH", path, msgspec.json.encode(grant), MERGE_PATCH),
    )


def _create(resource: Resource[Any], document: Mapping[str, Any]) -> Call:
    body = {"apiVersion": resource.api_version, "kind": resource.kind, **document}
    return Call("POST", resource.path(), msgspec.json.encode(body))
