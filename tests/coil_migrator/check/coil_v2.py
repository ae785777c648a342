"""A cluster that Coil v2 runs, with the shapes of its public manifests (v2/config in its repository, 2.15)."""

import json
from dataclasses import replace
from typing import Any

import msgspec

from coil.crd.address_pool import AddressPool
from coil.crd.builtin import ConfigMap, Node, ServiceCidr
from coil.crd.egress import Egress
from coil.crd.meta import ObjectMeta
from coil_migrator.check.cluster import ClientPod, Cluster, Machine
from coil_migrator.workload import Workload

Document = dict[str, Any]

NETCONF: Document = {
    "cniVersion": "0.4.0",
    "name": "k8s-pod-network",
    "plugins": [
        {"type": "coil", "socket": "/run/coild.sock"},
        {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}},
    ],
}


def workload(name: str, *flags: str, **spec: Any) -> Workload:
    """One program, as its manifest has it."""
    container = {"name": name, "image": "registry.example/cybozu/coil:2.15.0", "command": [name], "args": list(flags)}
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "kube-system"},
            "spec": {"template": {"spec": {"containers": [container], **spec}}},
        },
        Workload,
    )


def coild(*flags: str, netconf: str | None = None, **variables: str) -> Workload:
    """`netconf` None: it is in the ConfigMap `coil-config`."""
    reference = {"configMapKeyRef": {"name": "coil-config", "key": "cni_netconf"}}
    source = {"valueFrom": reference} if netconf is None else {"value": netconf}
    env = [{"name": "CNI_NETCONF", **source}, *({"name": name, "value": value} for name, value in variables.items())]
    installer = {"name": "coil-installer", "image": "coil", "command": ["coil-installer"], "env": env}
    return workload("coild", *flags, initContainers=[installer])


def pool(name: str, *subnets: Document, bits: int = 5, created: str = "2024-01-01T00:00:00Z") -> AddressPool:
    metadata = {"name": name, "creationTimestamp": created}
    return msgspec.convert({"metadata": metadata, "spec": {"blockSizeBits": bits, "subnets": subnets}}, AddressPool)


def egress(name: str, *destinations: str, **spec: Any) -> Egress:
    document = {
        "metadata": {"name": name, "namespace": "internet"},
        "spec": {"destinations": destinations or ["0.0.0.0/0"], **spec},
    }
    return msgspec.convert(document, Egress)


def pod(
    name: str, *, ports: tuple[int, ...] = (), host_network: bool = False, phase: str = "Running", **egresses: str
) -> ClientPod:
    annotations = {f"egress.coil.cybozu.com/{namespace}": names for namespace, names in egresses.items()}
    containers = [{"name": "c", "ports": [{"hostPort": port} for port in ports]}]
    document = {
        "metadata": {"name": name, "namespace": "apps", "annotations": annotations},
        "spec": {"containers": containers, "hostNetwork": host_network},
        "status": {"phase": phase},
    }
    return msgspec.convert(document, ClientPod)


def machine(name: str, **info: str) -> Machine:
    given = {"kernelVersion": "6.1.0-30", "containerRuntimeVersion": "containerd://1.7.2", "architecture": "amd64"}
    return msgspec.convert({"metadata": {"name": name}, "status": {"nodeInfo": {**given, **info}}}, Machine)


def node(name: str, address: str) -> Node:
    status = {"addresses": [{"type": "InternalIP", "address": address}]}
    return msgspec.convert({"metadata": {"name": name}, "status": status}, Node)


def service_cidr(*cidrs: str) -> ServiceCidr:
    return msgspec.convert({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs}}, ServiceCidr)


def with_netconf(cluster: Cluster, document: Document | str) -> Cluster:
    text = document if isinstance(document, str) else json.dumps(document)
    config = ConfigMap(metadata=ObjectMeta(name="coil-config", namespace="kube-system"), data={"cni_netconf": text})
    return replace(cluster, config_maps={("kube-system", "coil-config"): config})
