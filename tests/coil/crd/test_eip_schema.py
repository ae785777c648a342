"""The CRDs of the EIP gateway: in step with the structs, open for the proposal's manifests, closed for nonsense."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from coil.crd.egress_cluster_info import (
    AutoDetect,
    EgressClusterInfo,
    EgressClusterInfoSpec,
    EgressClusterInfoStatus,
    NetworkPair,
)
from coil.crd.egress_gateway import (
    AddressUsage,
    EgressGateway,
    EgressGatewaySpec,
    EgressGatewayStatus,
    EipEntry,
    GatewayNode,
    IpPools,
    NodeSelector,
    PolicyRef,
    PreferredNode,
    Ranges,
)
from coil.crd.egress_gateway_policy import (
    AppliedTo,
    EgressEndpoint,
    EgressEndpointSlice,
    EgressGatewayPolicy,
    EgressGatewayPolicySpec,
    EgressGatewayPolicyStatus,
    EgressIP,
    PolicyEip,
)
from coil.crd.egress_policy import (
    ClusterAppliedTo,
    EgressClusterPolicy,
    EgressClusterPolicySpec,
    EgressPolicy,
    EgressPolicyStatus,
)
from coil.crd.egress_tunnel import EgressTunnel, EgressTunnelStatus, TunnelEnd, TunnelParent
from coil.crd.eip_schema import eip_definitions
from coil.crd.eip_validation import validate_gateway, validate_policy
from coil.crd.meta import Condition, LabelSelector, Requirement
from tests.coil.crd.eip_object import Document, gateway_document, policy_document
from tests.coil.crd.structural import faults

DEFINITIONS = {document["spec"]["names"]["plural"]: document for document in eip_definitions()}
VERSIONS = {plural: document["spec"]["versions"][0] for plural, document in DEFINITIONS.items()}
SCHEMAS = {plural: version["schema"]["openAPIV3Schema"] for plural, version in VERSIONS.items()}
TUNNEL, GATEWAY = SCHEMAS["egresstunnels"], SCHEMAS["egressgateways"]
POLICY, SLICE = SCHEMAS["egressgatewaypolicies"], SCHEMAS["egressendpointslices"]
INFO = SCHEMAS["egressclusterinfos"]


def inside(schema: Document, path: str) -> Document:
    for part in path.split("."):
        schema = schema["items"] if part == "[]" else schema["properties"][part]
    return schema


@pytest.mark.parametrize(
    ("schema", "struct"),
    [
        (TUNNEL, EgressTunnel),
        (inside(TUNNEL, "status"), EgressTunnelStatus),
        (inside(TUNNEL, "status.tunnel"), TunnelEnd),
        (inside(TUNNEL, "status.tunnel.parent"), TunnelParent),
        (GATEWAY, EgressGateway),
        (inside(GATEWAY, "spec"), EgressGatewaySpec),
        (inside(GATEWAY, "spec.ranges"), Ranges),
        (inside(GATEWAY, "spec.nodeSelector"), NodeSelector),
        (inside(GATEWAY, "spec.nodeSelector.selector"), LabelSelector),
        (inside(GATEWAY, "spec.nodeSelector.preferredNodes.[]"), PreferredNode),
        (inside(GATEWAY, "spec.allowedNamespaces.matchExpressions.[]"), Requirement),
        (inside(GATEWAY, "status"), EgressGatewayStatus),
        (inside(GATEWAY, "status.nodeList.[]"), GatewayNode),
        (inside(GATEWAY, "status.nodeList.[].eips.[]"), EipEntry),
        (inside(GATEWAY, "status.nodeList.[].eips.[].policies.[]"), PolicyRef),
        (inside(GATEWAY, "status.ipUsage"), AddressUsage),
        (inside(GATEWAY, "status.conditions.[]"), Condition),
        (POLICY, EgressGatewayPolicy),
        (inside(POLICY, "spec"), EgressGatewayPolicySpec),
        (inside(POLICY, "spec.egressIP"), EgressIP),
        (inside(POLICY, "spec.appliedTo"), AppliedTo),
        (inside(POLICY, "status"), EgressGatewayPolicyStatus),
        (inside(POLICY, "status.eip"), PolicyEip),
        (inside(GATEWAY, "spec.ippools"), IpPools),
        *(
            case
            for schema, struct, spec, applied_to in (
                (SCHEMAS["egresspolicies"], EgressPolicy, EgressGatewayPolicySpec, AppliedTo),
                (SCHEMAS["egressclusterpolicies"], EgressClusterPolicy, EgressClusterPolicySpec, ClusterAppliedTo),
            )
            for case in (
                (schema, struct),
                (inside(schema, "spec"), spec),
                (inside(schema, "spec.appliedTo"), applied_to),
                (inside(schema, "status"), EgressPolicyStatus),
            )
        ),
        (INFO, EgressClusterInfo),
        (inside(INFO, "spec"), EgressClusterInfoSpec),
        (inside(INFO, "spec.autoDetect"), AutoDetect),
        (inside(INFO, "status"), EgressClusterInfoStatus),
        (inside(INFO, "status.clusterIP"), NetworkPair),
        (SLICE, EgressEndpointSlice),
        (inside(SLICE, "endpoints.[]"), EgressEndpoint),
    ],
)
def test_properties_are_the_fields_of_the_structs(schema: Document, struct: type[msgspec.Struct]) -> None:
    fields = msgspec.structs.fields(struct)
    assert set(schema["properties"]) - {"apiVersion", "kind"} == {field.encode_name for field in fields}
    required = {field.encode_name for field in fields if field.required}
    assert required <= set(schema.get("required", ())) | {"metadata"}


def walk(schema: Document, path: str) -> Iterator[tuple[str, Document]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")


@pytest.mark.parametrize("plural", SCHEMAS)
def test_every_field_has_a_type_and_a_description(plural: str) -> None:
    for path, schema in walk(SCHEMAS[plural], ""):
        assert "type" in schema, path
        assert "description" in schema or path == ".metadata", path


def test_defaults_are_those_of_the_structs() -> None:
    for schema, struct in (
        (inside(GATEWAY, "spec.ranges"), Ranges),
        (inside(GATEWAY, "spec.nodeSelector"), NodeSelector),
        (inside(GATEWAY, "spec"), EgressGatewaySpec),
        (inside(POLICY, "spec.egressIP"), EgressIP),
        (inside(POLICY, "spec"), EgressGatewayPolicySpec),
        (inside(INFO, "spec.autoDetect"), AutoDetect),
    ):
        defaults = {name: child["default"] for name, child in schema["properties"].items() if "default" in child}
        assert msgspec.convert(defaults, struct) == struct(), struct.__name__


def test_group_version_scope_and_subresources() -> None:
    for plural, document in DEFINITIONS.items():
        assert document["metadata"]["name"] == f"{plural}.egressgateway.spidernet.io"
        assert VERSIONS[plural]["name"] == "v1beta1"
        cluster = plural in {"egresstunnels", "egressgateways", "egressclusterpolicies", "egressclusterinfos"}
        assert document["spec"]["scope"] == ("Cluster" if cluster else "Namespaced")
        assert VERSIONS[plural].get("subresources") == (None if plural == "egressendpointslices" else {"status": {}})


def test_short_names_are_those_of_egressgateway() -> None:
    """Each is one kind's only; EgressGatewayPolicy, which is not egressgateway's, has none."""
    found = {plural: document["spec"]["names"].get("shortNames") for plural, document in DEFINITIONS.items()}
    assert found == {
        "egresstunnels": ["egt"],
        "egressgateways": ["egw"],
        "egressgatewaypolicies": None,
        "egressendpointslices": ["egep"],
        "egresspolicies": ["egp"],
        "egressclusterpolicies": ["egcp"],
        "egressclusterinfos": ["egci"],
    }


SAMPLES = """
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressTunnel
metadata:
   name: "node1"
status:
   tunnel:
      ipv4: "192.200.222.157"
      ipv6: "fd01::f2"
      mac: "66:50:85:cb:b2:bf"
      parent:
         name: "ens160"
         ipv4: "10.6.1.21/16"
         ipv6: "fd00::21/112"
   phase: "Ready"
   mark: "0x26000000"
---
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressGateway
metadata:
  name: "eg1"
spec:
  ranges:
   policy: "Random"
   ipv4:
   - ""
   ipv6:
   - ""
  nodeSelector:
    selector:
      matchLabels:
        egress: "true"
    policy: "AverageSelecton"
---
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressGatewayPolicy
metadata:
  namespace: "default"
  name: "policy-test"
spec:
  egressGatewayName: "eg1"
  egressIP:
    ipv4: ""
    ipv6: ""
    useNodeIP: false
  appliedTo:
    podSelector:
      matchLabels:
        app: "shopping"
  destSubnet:
  - "10.6.1.92/32"
  - "fd00::92/128"
---
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressGatewayPolicy
metadata:
  namespace: "default"
  name: "policy-test-subnet"
spec:
  egressGatewayName: "eg1"
  appliedTo:
    podSubnet:
    - "172.29.16.0/24"
    - 'fd00::1/126'
---
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressEndpointSlice
metadata:
  name: "policy-test-dx66t"
  namespace: "default"
  labels:
    egressgateway.spidernet.io/egressgatewaypolicy: "policy-test"
endpoints:
- podName: "web-app"
  ipv4List:
  - "172.29.30.123"
  ipv6List: []
  nodeName: "node1"
  uuid: ""
"""


@pytest.mark.parametrize(
    "sample", list(yaml.safe_load_all(SAMPLES)), ids=lambda sample: str(sample["metadata"]["name"])
)
def test_the_manifests_of_the_proposal_fit(sample: Document) -> None:
    schemas = {document["spec"]["names"]["kind"]: SCHEMAS[plural] for plural, document in DEFINITIONS.items()}
    assert faults(schemas[sample["kind"]], sample) == []
    match sample["kind"]:
        case "EgressGateway":
            assert validate_gateway(msgspec.convert(sample, EgressGateway)) == []
        case "EgressGatewayPolicy":
            assert validate_policy(msgspec.convert(sample, EgressGatewayPolicy)) == []


def ranges(**fields: Any) -> Document:
    return gateway_document(ranges=fields)


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"metadata": {"name": "a"}}, "spec: required"),
        ({"metadata": {"name": "a"}, "spec": {}}, "spec.nodeSelector: required"),
        (gateway_document(nodeSelector={}), "spec.nodeSelector.selector: required"),
        (gateway_document(nodeSelector={"selector": {}, "policy": "a" * 64}), "spec.nodeSelector.policy: maxLength"),
        (gateway_document(nodeSelector={"selector": {}, "limit": 0}), "spec.nodeSelector.limit: minimum"),
        (gateway_document(failPolicy="Ajar"), "spec.failPolicy: enum"),
        (ranges(policy="First"), "spec.ranges.policy: enum"),
        (ranges(limit=0), "spec.ranges.limit: minimum"),
        (ranges(ipv4=["fd00::1"]), "spec.ranges.ipv4[0]: pattern"),
        (ranges(ipv4=["10.6.0.1-10"]), "spec.ranges.ipv4[0]: pattern"),
        (ranges(ipv4=["10.6.0.1 - 10.6.0.9"]), "spec.ranges.ipv4[0]: pattern"),
        (ranges(ipv6=["10.6.0.1"]), "spec.ranges.ipv6[0]: pattern"),
        (ranges(ipv4=["10.6.0.1", "10.6.0.1"]), "spec.ranges.ipv4: x-kubernetes-list-type"),
        (ranges(ipv4=[f"10.{part // 250}.{part % 250}.1" for part in range(1025)]), "spec.ranges.ipv4: maxItems"),
        (
            gateway_document(allowedNamespaces={"matchExpressions": [{"key": "a", "operator": "Is"}]}),
            "spec.allowedNamespaces.matchExpressions[0].operator: enum",
        ),
        (
            gateway_document(allowedNamespaces={"matchLabels": {"a": "b c"}}),
            "spec.allowedNamespaces.matchLabels.a: pattern",
        ),
    ],
)
def test_a_gateway_that_the_schema_refuses(document: Document, fault: str) -> None:
    assert faults(GATEWAY, document) == [fault]


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"metadata": {"name": "a"}, "spec": {}}, "spec.appliedTo: required"),
        (policy_document(egressGatewayName="Not A Name"), "spec.egressGatewayName: pattern"),
        (policy_document(egressIP={"ipv4": "10.6.0.0/24"}), "spec.egressIP.ipv4: pattern"),
        (policy_document(egressIP={"ipv6": "10.6.0.1"}), "spec.egressIP.ipv6: pattern"),
        (policy_document(egressIP={"useNodeIP": "yes"}), "spec.egressIP.useNodeIP: type"),
        (policy_document(appliedTo={"podSubnet": ["172.29.16.0"]}), "spec.appliedTo.podSubnet[0]: pattern"),
        (policy_document(appliedTo={"podSubnet": "172.29.16.0/24"}), "spec.appliedTo.podSubnet: type"),
        (policy_document(destSubnet=["example.com"]), "spec.destSubnet[0]: pattern"),
        (policy_document(destSubnet=["10.0.0.0/8"] * 2), "spec.destSubnet: x-kubernetes-list-type"),
        (
            policy_document(destSubnet=[f"10.{part // 250}.{part % 250}.0/24" for part in range(1025)]),
            "spec.destSubnet: maxItems",
        ),
        (policy_document(priority="high"), "spec.priority: type"),
    ],
)
def test_a_policy_that_the_schema_refuses(document: Document, fault: str) -> None:
    assert faults(POLICY, document) == [fault]


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        ({"phase": "Fine"}, "status.phase: enum"),
        ({"mark": "0x27000100"}, "status.mark: pattern"),
        ({"tunnel": {"mac": "66:50:85"}}, "status.tunnel.mac: pattern"),
        ({"tunnel": {"parent": {"ipv4": "10.6.1.21"}}}, "status.tunnel.parent.ipv4: pattern"),
    ],
)
def test_a_tunnel_that_the_schema_refuses(status: Document, fault: str) -> None:
    assert faults(TUNNEL, {"metadata": {"name": "node1"}, "status": status}) == [fault]


def test_a_slice_is_bounded() -> None:
    endpoints = [{"podName": f"pod-{number}"} for number in range(1001)]
    assert faults(SLICE, {"metadata": {"name": "a"}, "endpoints": endpoints}) == ["endpoints: maxItems"]
