"""What the demo asks Kubernetes for: two pools, a namespace that draws from the second, pods that answer over TCP."""

from collections.abc import Mapping
from typing import Any

from integration.cluster.image import BUSYBOX_IMAGE

PORT = 8080
NAMESPACES = ("web", "dmz")

POOLS: dict[str, dict[str, Any]] = {
    "default": {"blockSizeBits": 5, "subnets": [{"ipv4": "10.100.0.0/16", "ipv6": "fd10:100::/112"}]},
    "dmz": {"blockSizeBits": 2, "subnets": [{"ipv4": "10.200.0.0/24", "ipv6": "fd10:200::/120"}]},
}


def pool_document(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """An AddressPool."""
    return {"apiVersion": "coil.cybozu.com/v2", "kind": "AddressPool", "metadata": {"name": name}, "spec": spec}


def namespace_document(name: str, *, pool: str = "") -> dict[str, Any]:
    """A Namespace whose pods draw from `pool`, or from the default one."""
    metadata: dict[str, Any] = {"name": name}
    if pool:
        metadata["annotations"] = {"coil.cybozu.com/pool": pool}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def pool_documents() -> list[dict[str, Any]]:
    """The demo's AddressPools."""
    return [pool_document(name, spec) for name, spec in POOLS.items()]


def namespace_documents() -> list[dict[str, Any]]:
    """`web` draws from the default pool, `dmz` from the one its annotation names."""
    return [namespace_document("web"), namespace_document("dmz", pool="dmz")]


def deployment_documents(*, web: int, dmz: int) -> list[dict[str, Any]]:
    """`web` and `dmz` pods, each in the namespace of its name, spread over the nodes by the scheduler."""
    return [
        deployment_document("web", namespace="web", replicas=web),
        deployment_document("dmz", namespace="dmz", replicas=dmz),
    ]


def pool_of(namespace: str) -> str:
    """The pool that pods of the namespace must come from."""
    return "dmz" if namespace == "dmz" else "default"


def server_container() -> dict[str, Any]:
    """A container that answers over HTTP with its pod's name, and is ready once it does."""
    # So whoever asks knows which pod it reached.
    command = f'mkdir /www && hostname > /www/name && exec busybox httpd -f -p "[::]:{PORT}" -h /www'
    return {
        "name": "web",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["busybox", "sh", "-c", command],
        "readinessProbe": {"httpGet": {"path": "/name", "port": PORT}, "periodSeconds": 1},
    }


def deployment_document(name: str, *, namespace: str, replicas: int) -> dict[str, Any]:
    """Servers that the scheduler spreads evenly over the nodes."""
    labels = {"app": name}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [server_container()],
                    "topologySpreadConstraints": [spread],
                    "terminationGracePeriodSeconds": 0,
                },
            },
        },
    }
