"""CoreDNS in a cluster, as installers of Kubernetes set it up; it answers for the cluster and asks nobody outside."""

from typing import Any

from integration.cluster.control_plane import ControlPlane
from integration.cluster.family import ClusterFamilies
from integration.cluster.node_config import CLUSTER_DOMAIN
from integration.conformance.images import COREDNS_IMAGE
from integration.deployment import apply

NAMESPACE = "kube-system"
NAME = "coredns"
SERVICE = "kube-dns"
_LABELS = {"k8s-app": "kube-dns"}
_PORT, _HEALTH, _READY = 53, 8080, 8181
_ROLLOUT_SECONDS = 120.0
_COREFILE = f"""
.:{_PORT} {{
    errors
    health :{_HEALTH}
    ready :{_READY}
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
        pods insecure
        ttl 30
    }}
    cache 30
    loadbalance
}}
"""

Document = dict[str, Any]


def deploy_coredns(plane: ControlPlane, families: ClusterFamilies) -> None:
    """Two replicas behind the address that pods are told; its image is on the nodes, which are Ready.

    Returns when it answers. Raises KubectlError. Idempotent.
    """
    apply(plane, *_documents(families))
    plane.kubectl(
        *(f"--namespace={NAMESPACE}", "rollout", "status", f"deployment/{NAME}", f"--timeout={_ROLLOUT_SECONDS:.0f}s"),
        timeout=_ROLLOUT_SECONDS + 10,
    )


def remove_coredns(plane: ControlPlane) -> None:
    """The opposite; its pods have gone when it returns. Raises KubectlError. Idempotent."""
    names = [f"{document['kind']}/{document['metadata']['name']}" for document in _documents(ClusterFamilies.IPV4_ONLY)]
    plane.kubectl(
        *("delete", f"--namespace={NAMESPACE}", "--ignore-not-found", "--cascade=foreground"),
        *(f"--timeout={_ROLLOUT_SECONDS:.0f}s", *names),
        timeout=_ROLLOUT_SECONDS + 10,
    )


def _documents(families: ClusterFamilies) -> list[Document]:
    return [*_access_documents(), _configuration(), _deployment(), _service(families)]


def _access_documents() -> list[Document]:
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    access = "rbac.authorization.k8s.io"
    return [
        _document("v1", "ServiceAccount", NAME),
        {"apiVersion": f"{access}/v1", "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": rules},
        {
            "apiVersion": f"{access}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": {"apiGroup": access, "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        },
    ]


def _configuration() -> Document:
    return {**_document("v1", "ConfigMap", NAME), "data": {"Corefile": _COREFILE}}


def _deployment() -> Document:
    def probe(path: str, port: int) -> Document:
        return {"httpGet": {"path": path, "port": port}, "periodSeconds": 2, "timeoutSeconds": 5}

    container = {
        "name": NAME,
        "image": COREDNS_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "volumeMounts": [{"name": "configuration", "mountPath": "/etc/coredns", "readOnly": True}],
        "livenessProbe": {**probe("/health", _HEALTH), "failureThreshold": 10},
        "readinessProbe": probe("/ready", _READY),
    }
    spec = {
        "serviceAccountName": NAME,
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 1,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": _LABELS},
            }
        ],
        "containers": [container],
        "volumes": [{"name": "configuration", "configMap": {"name": NAME}}],
    }
    return {
        **_document("apps/v1", "Deployment", NAME),
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": _LABELS},
            "template": {"metadata": {"labels": _LABELS}, "spec": spec},
        },
    }


def _service(families: ClusterFamilies) -> Document:
    addresses = [str(address) for address in families.dns_addresses]
    ports = [{"name": f"dns-{name.lower()}", "port": _PORT, "protocol": name} for name in ("UDP", "TCP")]
    return {
        **_document("v1", "Service", SERVICE),
        "spec": {
            "selector": _LABELS,
            "clusterIP": addresses[0],
            "clusterIPs": addresses,
            "ipFamilies": [f"IPv{address.version}" for address in families.dns_addresses],
            "ipFamilyPolicy": "RequireDualStack" if len(addresses) > 1 else "SingleStack",
            "ports": ports,
        },
    }


def _document(version: str, kind: str, name: str) -> Document:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE, "labels": _LABELS}}
