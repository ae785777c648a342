"""Whether this node is about to leave the cluster, in which case no interface is detached any more.

An interface that is attached goes with its instance. One that a node has detached and not deleted yet, when its
instance ends, stays behind as `available`, takes addresses, and keeps its security groups and the VPC from being
deleted. And a node that is drained is just the one whose interfaces become idle. So right before an interface is
detached, everybody is asked who would know:

* the process, which was told to end (SIGTERM), maybe because the machine shuts down;
* the metadata service: a Spot interruption notice, or a rebalance recommendation, which precedes it (EC2 User Guide,
  "Spot Instance interruption notices", "EC2 instance rebalance recommendations");
* the Node object: cordoned, tainted for its removal, or being deleted.

Who does not answer may know of an end: then the interface stays as well.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from coil.aws.metadata import InstanceMetadata, MetadataError
from coil.crd.builtin import NODES
from coil.crd.names import NodeName
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError

ASK_SECONDS: Final = 10.0
"""For all answers together: pods that come meanwhile wait for the call to EC2 that would be next."""
NO_ANSWER: Final = f"no answer within {ASK_SECONDS:.0f} s"
REMOVAL_TAINTS: Final = (
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "aws-node-termination-handler/",
    "node.cloudprovider.kubernetes.io/shutdown",
    "node.kubernetes.io/out-of-service",
)
"""Keys, or how they begin, of the taints that cluster-autoscaler, Karpenter, aws-node-termination-handler and the cloud
controller manager set on a node that they remove."""


class Departure(Protocol):
    """One per process."""

    async def reason(self) -> str | None:
        """Why the node may be leaving, or why nobody can say; None if it stays. Raises nothing. Changes nothing."""
        ...


class NodeDeparture:
    """The node's. `stopping` is whether the process was told to end."""

    def __init__(
        self, client: ApiClient, metadata: InstanceMetadata, *, node: NodeName, stopping: Callable[[], bool]
    ) -> None:
        self._client = client
        self._metadata = metadata
        self._node = node
        self._stopping = stopping

    async def reason(self) -> str | None:
        """See `Departure`. The process is asked last: it may be told to end while the others are asked."""
        try:
            async with asyncio.timeout(ASK_SECONDS):
                if (notice := await self._metadata.end_notice()) is not None:
                    return f"the instance's metadata have a notice of its end: {notice}"
                document = await self._client.get_document(NODES, self._node)
        except (MetadataError, ApiError, TimeoutError) as error:
            return f"whether the node is about to be removed is not known: {str(error) or NO_ANSWER}"
        return find_removal(document) or ("coild was told to end" if self._stopping() else None)


def find_removal(node: Mapping[str, Any]) -> str | None:
    """What a Node object has that says that the node is to leave; None if nothing has. Pure."""
    spec = node.get("spec") or {}
    for taint in spec.get("taints") or ():
        if str(taint.get("key", "")).startswith(REMOVAL_TAINTS):
            return f"the Node has the taint {taint['key']}"
    if (node.get("metadata") or {}).get("deletionTimestamp"):
        return "the Node is being deleted"
    return "the Node is cordoned" if spec.get("unschedulable") else None
