"""What the EIP figures fill the API server with, as prepared calls. Pure.

One gateway of one node carries all policies, which is as much as a node can be asked for; their pods are spread over
all nodes, with one slice for each policy's hundred.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from ipaddress import IPv4Address
from typing import Any, Final

import msgspec

from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_ENDPOINT_SLICES, EGRESS_GATEWAY_POLICIES
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.crd.names import LABEL_POLICY
from coil.crd.resource import Resource
from integration.bench.bare_client import MERGE_PATCH, Call
from integration.bench.eip_crowd import PODS, destinations, eip_address, pod_address, policy_ref
from integration.bench.ipam_text import node_name

GATEWAY: Final = "bench"
_LIFE: Final = 140_000
"""How far the address of a pod in the place of another one is from its."""
TENANTS: Final = tuple(sorted({policy_ref(number).namespace for number in range(1000)}))


def create_tunnel(number: int, address: IPv4Address) -> list[Call]:
    """A complete one, Ready, of the node of that number, whose own address this is."""
    name = node_name(number)
    status = {
        "tunnel": {
            "ipv4": str(IPv4Address("172.31.0.1") + number),
            "mac": f"02:00:00:01:{number >> 8:02x}:{number & 255:02x}",
            "parent": {"name": "eth0", "ipv4": f"{address}/24"},
        },
        "phase": "Ready",
        "mark": f"{0x26000100 + (number << 8):#x}",
        "nodeAddresses": [str(address)],
        "podCIDRs": [f"{IPv4Address('10.80.0.0') + (number << 8)}/24"],
    }
    return [_create(EGRESS_TUNNELS, name), _tell(EGRESS_TUNNELS, name, status)]


def create_gateway(*, node: int | None, hosts: Sequence[str]) -> Call:
    """With room for every policy. `node`: the one that is to carry; else those that are called so."""
    names = [node_name(node)] if node is not None else list(hosts)
    selector = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": names}]}
    spec = {
        "ranges": {"policy": "PreferUnused", "ipv4": ["100.65.0.1-100.65.31.254"]},
        "nodeSelector": {"selector": selector},
    }
    return _create(EGRESS_GATEWAYS, GATEWAY, spec=spec)


def place_policies(count: int, *, node: int, term: int) -> Call:
    """The gateway's status: each policy with an address of its own, all on that node, for that term of its lease."""
    eips = [
        {"ipv4": str(eip_address(number)), "policies": [{"namespace": ref.namespace, "name": ref.name}]}
        for number in range(count)
        for ref in (policy_ref(number),)
    ]
    listed = {"name": node_name(node), "status": "Ready", "term": term, "eips": eips}
    return _tell(EGRESS_GATEWAYS, GATEWAY, {"revision": 1, "nodeList": [listed]})


def create_lease(node: int, *, term: int) -> Call:
    """As a former life of that node's agent has left it, held."""
    name = node_name(node)
    document = {
        "metadata": {"name": f"coil-eip-{name}", "labels": {"coil.cybozu.com/component": "eip-gateway"}},
        "spec": {"holderIdentity": name, "leaseTransitions": term, "leaseDurationSeconds": 1},
    }
    return Call("POST", "/apis/coordination.k8s.io/v1/namespaces/coil-eip-leases/leases", msgspec.json.encode(document))


def create_policy(number: int, *, node: int | None = None, narrow: bool = True) -> list[Call]:
    """For the pods with its name as the label `app`; placed on that node. Not `narrow`: for all destinations."""
    ref = policy_ref(number)
    spec: dict[str, Any] = {
        "egressGatewayName": GATEWAY,
        "appliedTo": {"podSelector": {"matchLabels": {"app": ref.name}}},
    }
    if narrow:
        spec["destSubnet"] = [str(network) for network in destinations(number)]
    calls = [_create(EGRESS_GATEWAY_POLICIES, ref.name, namespace=ref.namespace, spec=spec)]
    if node is not None:
        status = {
            "egressGatewayName": GATEWAY,
            "eip": {"ipv4": str(eip_address(number))},
            "node": node_name(node),
        }
        calls.append(_tell(EGRESS_GATEWAY_POLICIES, ref.name, status, namespace=ref.namespace))
    return calls


def change_policy(number: int, extra: Iterable[str]) -> Call:
    """These destinations beside its own."""
    ref = policy_ref(number)
    spec = {"destSubnet": [*map(str, destinations(number)), *extra]}
    path = EGRESS_GATEWAY_POLICIES.path(namespace=ref.namespace, name=ref.name)
    return Call("PATCH", path, msgspec.json.encode({"spec": spec}), MERGE_PATCH)


def create_slice(number: int, *, nodes: int) -> Call:
    """All pods of a policy, one on each node in turn."""
    ref = policy_ref(number)
    labels = {LABEL_POLICY: ref.name}
    endpoints = _endpoints(number, range(PODS), nodes)
    return _create(EGRESS_ENDPOINT_SLICES, ref.name, namespace=ref.namespace, labels=labels, endpoints=endpoints)


def replace_pods(number: int, places: Collection[int], *, nodes: int, lives: int) -> Call:
    """The policy's slice when the pods in these places have been replaced so many times, each on its node."""
    ref = policy_ref(number)
    pods = [pod + (lives * _LIFE if pod in places else 0) for pod in range(PODS)]
    path = EGRESS_ENDPOINT_SLICES.path(namespace=ref.namespace, name=ref.name)
    return Call("PATCH", path, msgspec.json.encode({"endpoints": _endpoints(number, pods, nodes)}), MERGE_PATCH)


def newcomer(number: int, place: int, *, lives: int) -> IPv4Address:
    """The address of a pod that has been replaced so many times."""
    return pod_address(number, place + lives * _LIFE)


def create_pod(name: str, *, number: int, address: IPv4Address, node: str) -> list[Call]:
    """One that runs, for the controller."""
    ref = policy_ref(number)
    folder = f"/api/v1/namespaces/{ref.namespace}/pods"
    spec = {
        "nodeName": node,
        "containers": [{"name": "main", "image": "none"}],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
    }
    document = {"metadata": {"name": name, "labels": {"app": ref.name}}, "spec": spec}
    status = {"phase": "Running", "podIP": str(address), "podIPs": [{"ip": str(address)}]}
    return [
        Call("POST", folder, msgspec.json.encode(document)),
        Call("PATCH", f"{folder}/{name}/status", msgspec.json.encode({"status": status}), MERGE_PATCH),
    ]


def delete_pod(name: str, *, number: int) -> Call:
    """At once."""
    path = f"/api/v1/namespaces/{policy_ref(number).namespace}/pods/{name}"
    return Call("DELETE", path, b'{"gracePeriodSeconds": 0}')


def create_tenant(name: str) -> list[Call]:
    """A namespace where pods are admitted: no controller-manager makes the account."""
    return [
        Call("POST", "/api/v1/namespaces", msgspec.json.encode({"metadata": {"name": name}})),
        Call(
            *("POST", f"/api/v1/namespaces/{name}/serviceaccounts"),
            msgspec.json.encode({"metadata": {"name": "default"}}),
        ),
    ]


def _endpoints(number: int, pods: Iterable[int], nodes: int) -> list[Mapping[str, object]]:
    return [
        {
            "podName": f"{policy_ref(number).name}-7d9c5b8f6d-{pod:06x}",
            "ipv4List": [str(pod_address(number, pod))],
            "nodeName": node_name((number + index) % nodes),
            "uuid": f"00000000-0000-4000-8000-{number:04x}{pod:08x}",
        }
        for index, pod in enumerate(pods)
    ]


def _create(
    resource: Resource[Any],
    name: str,
    *,
    namespace: str = "",
    labels: Mapping[str, str] | None = None,
    **body: object,
) -> Call:
    metadata = {"name": name, "labels": dict(labels or {})}
    document = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **body}
    return Call("POST", resource.path(namespace=namespace), msgspec.json.encode(document))


def _tell(resource: Resource[Any], name: str, status: Mapping[str, Any], *, namespace: str = "") -> Call:
    path = resource.path(namespace=namespace, name=name, subresource="status")
    return Call("PATCH", path, msgspec.json.encode({"status": status}), MERGE_PATCH)
