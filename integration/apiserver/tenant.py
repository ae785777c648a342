"""A user of the cluster with a client certificate, who has in one namespace what a role of the chart gives, no more."""

import json
from typing import Any

from integration.cluster.control_plane import ControlPlane
from integration.cluster.https import Endpoint
from integration.deployment import apply

Document = dict[str, Any]


class Tenant:
    """`roles` are ClusterRoles, bound in `namespace`, which exists. The bindings go with it."""

    def __init__(self, plane: ControlPlane, namespace: str, *roles: str) -> None:
        self.namespace = namespace
        self.user = f"jane-of-{namespace}"
        identity = plane.credentials.authority.issue(self.user)
        authority = plane.credentials.authority.certificate
        self._api = Endpoint(address=str(plane.address), port=plane.port, authority=authority, identity=identity)
        apply(plane, *(self._binding(role) for role in roles))

    def request(self, method: str, path: str, body: Document | None = None) -> tuple[int, Document]:
        """Status and answer."""
        status, answer = self._api.request(method, path, None if body is None else json.dumps(body).encode())
        return status, json.loads(answer)

    def _binding(self, role: str) -> Document:
        return {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role, "namespace": self.namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": self.user}],
        }
