"""Pods as objects, bound to a node before the runtime makes them, as a kubelet's are: coild knows each from its
informer and asks the API server for none.
"""

import json

from integration.apiserver.sandbox import PodName
from integration.bench.cni_side import POD_NAMES, POD_NAMESPACE
from integration.cluster.control_plane import ControlPlane
from integration.deployment import apply

_ACCOUNT = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {"name": "default", "namespace": POD_NAMESPACE},
}


def bind_pods(plane: ControlPlane, node: str) -> tuple[PodName, ...]:
    """All pods of `POD_NAMES`, in that order. For one node of a control plane."""
    apply(plane, _ACCOUNT, *(_document(name, node) for name in POD_NAMES))
    pods = json.loads(plane.kubectl("get", "pods", f"--namespace={POD_NAMESPACE}", "--output=json"))["items"]
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
    return tuple(PodName(POD_NAMESPACE, name, uids[name]) for name in POD_NAMES)


def _document(name: str, node: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": POD_NAMESPACE},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "none"}],
            "automountServiceAccountToken": False,
        },
    }
