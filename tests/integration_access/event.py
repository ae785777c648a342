"""Lines of an API server's audit log, as it writes them."""

import json
from typing import Any

CLUSTER_WIDE = (
    'RBAC: allowed by ClusterRoleBinding "coild" of ClusterRole "coild" to ServiceAccount "coild/kube-system"'
)
IN_NAMESPACE = (
    'RBAC: allowed by RoleBinding "coil-ipam-controller/kube-system" of Role "coil-ipam-controller" '
    'to ServiceAccount "coil-ipam-controller/kube-system"'
)


def line(
    *,
    user: str = "system:serviceaccount:kube-system:coild",
    agent: str = "coil",
    verb: str = "get",
    resource: str = "nodes",
    decision: str = "allow",
    reason: str = CLUSTER_WIDE,
    deprecated: bool = False,
    **place: str,
) -> bytes:
    """One event; `place` adds to its objectRef, and an empty `decision` or `resource` stands for none."""
    event: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": user, "groups": ["system:serviceaccounts", "system:authenticated"]},
        "userAgent": agent,
    }
    if resource:
        event["objectRef"] = {"resource": resource, "apiVersion": "v1", **place}
    if decision:
        event["annotations"] = {"authorization.k8s.io/decision": decision, "authorization.k8s.io/reason": reason}
        if deprecated:
            event["annotations"] |= {"k8s.io/deprecated": "true", "k8s.io/removed-release": "1.25"}
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
