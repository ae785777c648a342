"""Two Nodes, and on each a pod of every account that programs on nodes have, with a token that is bound to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from integration.cluster.command_line import Version
from integration.cluster.control_plane import ControlPlane
from integration.cluster.https import Endpoint
from integration.deployment import apply, apply_own_node_policies, remove_own_node_policies

HERE, THERE = "own-node-here", "own-node-there"
ACCOUNTS: Final = ("coild", "coil-egress-node")
OLDEST: Final = Version(1, 30)
"""The first Kubernetes that has the policies' API, and tells the node of a token."""


@dataclass(frozen=True, slots=True)
class NodePair:
    """An API server with the chart's policies for programs on nodes, and the Nodes `HERE` and `THERE`."""

    plane: ControlPlane

    def token_of(self, node: str, account: str = "coild") -> Path:
        """A kubeconfig with the token that a pod of the account has there."""
        return self.plane.kubeconfig_for(account, pod=_pod_name(account, node))

    def endpoint_of(self, node: str, account: str) -> Endpoint:
        """The API server as that pod calls it."""
        return self.plane.endpoint_for(account, pod=_pod_name(account, node))


@contextmanager
def open_node_pair(plane: ControlPlane) -> Iterator[NodePair]:
    """The policies are applied, but may not be enforced yet. Everything is gone at the end. Skips where the API server
    is too old for policies.
    """
    if plane.version < OLDEST:
        pytest.skip(f"the policies are for Kubernetes {OLDEST} and newer")
    pods = [(account, node) for account in ACCOUNTS for node in (HERE, THERE)]
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}} for node in (HERE, THERE)]
    try:
        apply(plane, *nodes, *(pod_document(*pod) for pod in pods))
        apply_own_node_policies(plane)
        yield NodePair(plane)
    finally:
        remove_own_node_policies(plane)
        names = [_pod_name(*pod) for pod in pods]
        plane.kubectl("--namespace=kube-system", "delete", "pod", *names, "--force", "--ignore-not-found")
        plane.kubectl("delete", "node", HERE, THERE, "--ignore-not-found")


def _pod_name(account: str, node: str) -> str:
    return f"{account}-of-{node}"


def pod_document(account: str, node: str, *, name: str = "", namespace: str = "kube-system") -> dict[str, Any]:
    """A pod of the account that is bound to the node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name or _pod_name(account, node), "namespace": namespace},
        "spec": {
            "nodeName": node,
            "serviceAccountName": account,
            "containers": [{"name": "main", "image": "coil"}],
        },
    }
