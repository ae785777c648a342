"""What the demo asks Kubernetes for: two pools, a namespace that draws from the second, pods that answer over TCP."""

from typing import Any

from integration.cluster.image import BUSYBOX_IMAGE

PORT = 8080
NAMESPACES = ("web", "dmz")

POOLS: dict[str, dict[str, Any]] = {
    "default": {"blockSizeBits": 5, "subnets": [{"ipv4": "10.100.0.0/16", "ipv6": "fd10:100::/112"}]},
    "dmz": {"blockSizeBits": 2, "subnets": [{"ipv4": "10.200.0.0/24", "ipv6": "fd10:200::/120"}]},
}


def pool_documents() -> list[dict[str, Any]]:
    """The AddressPools."""
    return [
        {"apiVersion": "coil.cybozu.com/v2", "kind": "AddressPool", "metadata": {"name": name}, "spec": spec}
        for name, spec in POOLS.items()
    ]


def namespace_documents() -> list[dict[str, Any]]:
    """`web` draws from the default pool, `dmz` from the one its annotation names."""
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "web"}},
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "dmz", "annotations": {"coil.cybozu.com/pool": "dmz"}},
        },
    ]


def deployment_documents(*, web: int, dmz: int) -> list[dict[str, Any]]:
    """`web` and `dmz` pods, each in the namespace of its name, spread over the nodes by the scheduler."""
    return [_deployment("web", replicas=web), _deployment("dmz", replicas=dmz)]


def pool_of(namespace: str) -> str:
    """The pool that pods of the namespace must come from."""
    return "dmz" if namespace == "dmz" else "default"


def _deployment(name: str, *, replicas: int) -> dict[str, Any]:
    labels = {"app": name}
    # httpd answers with the pod's own name, so that whoever asks knows which pod it reached.
    command = f'mkdir /www && hostname > /www/name && exec busybox httpd -f -p "[::]:{PORT}" -h /www'
    container = {
        "name": "web",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["busybox", "sh", "-c", command],
        "readinessProbe": {"httpGet": {"path": "/name", "port": PORT}, "periodSeconds": 1},
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [container],
                    "topologySpreadConstraints": [spread],
                    "terminationGracePeriodSeconds": 0,
                },
            },
        },
    }
