"""A cluster that egressgateway 0.6 runs, with the shapes of its chart and of what its controller writes."""

from typing import Any

import msgspec

from coil.crd.builtin import ConfigMap, Namespace
from coil.crd.meta import ObjectMeta
from coil_migrator.check.cluster import Cluster
from coil_migrator.check.egressgateway_object import Untyped
from coil_migrator.workload import Workload

Document = dict[str, Any]

GROUP = "egressgateway.spidernet.io"
API = f"{GROUP}/v1beta1"
PLACE = "kube-system"
KINDS = (
    "egressgateways",
    "egresspolicies",
    "egressclusterpolicies",
    "egressendpointslices",
    "egressclusterendpointslices",
    "egresstunnels",
    "egressclusterinfos",
)
FEATURE = """\
enableIPv4: true
enableIPv6: false
datapathMode: iptables
tunnelIpv4Subnet: 172.31.0.0/16
tunnelIpv6Subnet: fd11::/112
tunnelDetectMethod: defaultRouteInterface
tunnelDetectCustomInterface: []
enableGatewayReplyRoute: false
gatewayReplyRouteTable: 600
gatewayReplyRouteMark: 39
iptables:
  backendMode: auto
vxlan:
  name: egress.vxlan
  port: 7789
  id: 100
  disableChecksumOffload: false
clusterCIDR:
  autoDetect: {podCidrMode: auto, clusterIP: true, nodeIP: true}
  extraCidr: []
maxNumberEndpointPerSlice: 100
announcedInterfacesToExclude: ["^cali.*", "br-*"]
gatewayFailover: {enable: false, tunnelMonitorPeriod: 5, tunnelUpdatePeriod: 5, eipEvictionTimeout: 15}
"""
"""What its chart writes by default."""


def labels(component: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "egressgateway", "app.kubernetes.io/component": component}


def program(kind: str, name: str) -> Document:
    container = {"name": "main", "image": f"example.invalid/spidernet-io/{name}:v0.6.9"}
    volumes = [{"name": "config", "configMap": {"name": "egressgateway"}}, {"name": "tmp", "emptyDir": {}}]
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": PLACE, "labels": labels(name)},
        "spec": {
            "selector": {"matchLabels": labels(name)},
            "template": {"metadata": {"labels": labels(name)}, "spec": {"containers": [container], "volumes": volumes}},
        },
    }


PROGRAMS = (program("DaemonSet", "egressgateway-agent"), program("Deployment", "egressgateway-controller"))


def cluster(feature: str = FEATURE, **fields: Any) -> Cluster:
    """With its programs and definitions, and no objects but these."""
    config = ConfigMap(metadata=ObjectMeta(name="egressgateway", namespace=PLACE), data={"conf.yml": feature})
    ours = {
        "workloads": tuple((each["kind"], msgspec.convert(each, Workload)) for each in PROGRAMS),
        "config_maps": {(PLACE, "egressgateway"): config},
        "definitions": {f"{plural}.{GROUP}": "" for plural in KINDS},
    }
    return Cluster(**{**ours, **fields})


def gateway_document(name: str, **spec: Any) -> Document:
    """As it is stored: admission has drawn the default EIPs, and added the finalizer."""
    selector = {"selector": {"matchLabels": {"egress": "true"}}}
    return {
        "apiVersion": API,
        "kind": "EgressGateway",
        "metadata": {"name": name, "finalizers": [f"{GROUP}/egressgateway"]},
        "spec": {"nodeSelector": selector, **spec},
    }


def policy_document(name: str, namespace: str = "", **spec: Any) -> Document:
    """An EgressPolicy, or without a namespace an EgressClusterPolicy."""
    applied = {"podSelector": {"matchLabels": {"app": "web"}}}
    address = {"allocatorPolicy": "default", "useNodeIP": False, **spec.pop("egressIP", {})}
    return {
        "apiVersion": API,
        "kind": "EgressPolicy" if namespace else "EgressClusterPolicy",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": {"egressGatewayName": "office", "egressIP": address, "appliedTo": applied, **spec},
    }


def stored(document: Document, status: Document | None = None) -> Untyped:
    return msgspec.convert({**document, "status": status}, Untyped)


def gateway(name: str = "office", *, status: Document | None = None, **spec: Any) -> Untyped:
    pools = {"ippools": {"ipv4": ["203.0.113.1-203.0.113.6"], "ipv4DefaultEIP": "203.0.113.4"}}
    return stored(gateway_document(name, **(spec or pools)), status)


def policy(name: str, namespace: str = "", *, today: str = "", created: int = 1, **spec: Any) -> Untyped:
    """`today` is the address in its status; the younger one has the larger `created`."""
    document = policy_document(name, namespace, **spec)
    document["metadata"]["creationTimestamp"] = f"2025-01-{created:02}T00:00:00Z"
    return stored(document, {"eip": {"ipv4": today}, "node": "n1"} if today else None)


def namespace(name: str, **more: str) -> Namespace:
    return Namespace(metadata=ObjectMeta(name=name, labels={"kubernetes.io/metadata.name": name, **more}))
