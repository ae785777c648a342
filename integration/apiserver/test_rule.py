"""The rules of the custom resource definitions (CEL) on a real API server, without webhooks: each refuses what it is
for, at the field and in the words of the validation that the webhooks share, and lets pass what is right.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.definition import RULES
from coil.crd.egress import EGRESSES
from coil.crd.egress_client_slice import EGRESS_CLIENT_SLICES
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.crd.egress_gateway_policy_schema import egress_gateway_policy_definition
from coil.crd.egress_gateway_schema import egress_gateway_definition
from coil.crd.egress_schema import egress_client_slice_definition, egress_definition
from coil.crd.resource import Resource
from coil.crd.schema import address_block_definition, address_pool_definition
from integration.cluster.command_line import Version
from integration.cluster.control_plane import ControlPlane
from tests.coil.crd.eip_object import PODS, gateway_document, policy_document

pytestmark = pytest.mark.apiserver

Document = dict[str, Any]
RESOURCES: dict[str, Resource[Any]] = {
    resource.kind: resource
    for resource in (
        *(ADDRESS_POOLS, ADDRESS_BLOCKS, EGRESSES, EGRESS_CLIENT_SLICES),
        *(EGRESS_GATEWAYS, EGRESS_GATEWAY_POLICIES),
    )
}
UNCHANGED = "must not change"
IMMUTABLE = "is immutable; delete the policy and create another"
VALUES = "In and NotIn need values, Exists and DoesNotExist have none"
EXISTS = [{"key": "a", "operator": "Exists"}]


def pool(*subnets: Document, bits: int = 5) -> Document:
    return {"metadata": {"name": "rule"}, "spec": {"blockSizeBits": bits, "subnets": list(subnets)}}


def block(networks: Document, index: int = 1) -> Document:
    return {"metadata": {"name": "rule"}, "index": index, **networks}


def client_slice(node: str, *addresses: str) -> Document:
    return {"metadata": {"name": "rule", "namespace": "default"}, "nodeName": node, "addresses": list(addresses)}


def egress(**budget: Any) -> Document:
    spec = {"destinations": ["10.0.0.0/8"], "podDisruptionBudget": budget}
    return {"metadata": {"name": "rule", "namespace": "default"}, "spec": spec}


def egress_for(namespaces: Document) -> Document:
    spec = {"destinations": ["10.0.0.0/8"], "allowedNamespaces": namespaces}
    return {"metadata": {"name": "rule", "namespace": "default"}, "spec": spec}


def gateway(**spec: Any) -> Document:
    return gateway_document("rule", **spec)


def policy(**spec: Any) -> Document:
    return policy_document("rule", "default", **spec)


def nodes(**selector: Any) -> Document:
    return gateway(nodeSelector={"selector": selector})


V4, OTHER, BOTH = {"ipv4": "10.2.0.0/16"}, {"ipv4": "10.3.0.0/16"}, {"ipv4": "10.4.0.0/16", "ipv6": "fd04::/112"}
REQUIREMENTS = [{"key": "a", "operator": "In"}]
SELECTOR = "spec.nodeSelector.selector"
CREATIONS = [
    ("AddressPool", pool({}), pool(V4), "spec.subnets[0]", "must have an ipv4 or an ipv6 network"),
    (
        "AddressPool",
        pool({"ipv4": "10.2.0.0/16", "ipv6": "fd02::/111"}),
        pool(BOTH),
        "spec.subnets[0]",
        "10.2.0.0/16 and fd02::/111 must hold equally many addresses",
    ),
    (
        "AddressPool",
        pool(V4, BOTH),
        pool(V4, OTHER),
        "spec.subnets",
        "must have the same address families as the first entry",
    ),
    (
        "AddressPool",
        pool(V4, {"ipv4": "10.9.0.0/28"}),
        pool(V4, {"ipv4": "10.9.0.0/27"}),
        "spec.subnets",
        "a network is smaller than a block of 2^blockSizeBits addresses",
    ),
    (
        "AddressPool",
        pool({"ipv6": "fd02::/124"}),
        pool({"ipv6": "fd02::/123"}),
        "spec.subnets",
        "a network is smaller than a block of 2^blockSizeBits addresses",
    ),
    (
        "AddressPool",
        pool({"ipv6": "fd00::/60"}),
        pool({"ipv6": "fd00::/61"}),
        "spec.subnets",
        "hold more blocks than an index of 64 bits can number",
    ),
    (
        "Egress",
        egress(minAvailable=1, maxUnavailable="50%"),
        egress(minAvailable=1),
        "spec.podDisruptionBudget",
        "must not have both minAvailable and maxUnavailable",
    ),
    (
        "Egress",
        egress_for({"matchExpressions": REQUIREMENTS}),
        egress_for({"matchExpressions": EXISTS}),
        "spec.allowedNamespaces.matchExpressions[0].values",
        VALUES,
    ),
    (
        "EgressGateway",
        nodes(),
        nodes(matchExpressions=EXISTS),
        SELECTOR,
        "must not be empty: it would have every node carry addresses",
    ),
    (
        "EgressGateway",
        nodes(matchExpressions=REQUIREMENTS),
        nodes(matchExpressions=EXISTS),
        f"{SELECTOR}.matchExpressions[0].values",
        VALUES,
    ),
    (
        "EgressGateway",
        gateway(allowedNamespaces={"matchExpressions": REQUIREMENTS}),
        gateway(allowedNamespaces={"matchExpressions": EXISTS}),
        "spec.allowedNamespaces.matchExpressions[0].values",
        VALUES,
    ),
    (
        "EgressGatewayPolicy",
        policy(appliedTo={"podSelector": {"matchExpressions": REQUIREMENTS}}),
        policy(appliedTo={"podSelector": {"matchExpressions": EXISTS}}),
        "spec.appliedTo.podSelector.matchExpressions[0].values",
        VALUES,
    ),
    (
        "EgressGatewayPolicy",
        policy(egressIP={"useNodeIP": True, "ipv4": "10.6.0.1"}),
        policy(egressIP={"useNodeIP": True, "ipv4": ""}),
        "spec.egressIP",
        "must not ask for an address and for the node's own (useNodeIP)",
    ),
    (
        "EgressGatewayPolicy",
        policy(appliedTo={**PODS, "podSubnet": ["10.0.0.0/8"]}),
        policy(appliedTo={"podSubnet": ["10.0.0.0/8"]}),
        "spec.appliedTo",
        "must have either a podSelector or a podSubnet",
    ),
]
"""Kind, a bad and a good document, and field and sentence of the refusal."""
UPDATES = [
    ("AddressPool", pool(V4), pool(V4, bits=6), pool(V4), "spec.blockSizeBits", "is immutable"),
    ("AddressPool", pool(V4, OTHER), pool(V4), pool(V4, OTHER), "spec.subnets", "must not be removed"),
    (
        "AddressPool",
        pool(V4),
        pool(OTHER, V4),
        pool(V4, OTHER),
        "spec.subnets",
        "is immutable; new subnets go to the end",
    ),
    ("AddressBlock", block(V4), block(V4, 2), block(V4), "index", UNCHANGED),
    ("AddressBlock", block(V4), block(OTHER), block(V4), "ipv4", UNCHANGED),
    ("AddressBlock", block(BOTH), block(BOTH | {"ipv6": "fd05::/112"}), block(BOTH), "ipv6", UNCHANGED),
    ("AddressBlock", block(V4), block(V4 | {"ipv6": "fd04::/112"}), block(V4), "ipv6", UNCHANGED),
    ("AddressBlock", block(BOTH), block({"ipv6": BOTH["ipv6"]}), block(BOTH), "ipv4", UNCHANGED),
    (
        "EgressClientSlice",
        client_slice("n1"),
        client_slice("n2"),
        client_slice("n1", "10.1.0.7"),
        "nodeName",
        UNCHANGED,
    ),
    (
        "EgressGatewayPolicy",
        policy(egressGatewayName="office"),
        policy(egressGatewayName="home"),
        policy(egressGatewayName="office", priority=2),
        "spec.egressGatewayName",
        IMMUTABLE,
    ),
    (
        "EgressGatewayPolicy",
        policy(egressIP={"ipv4": "10.6.0.1"}),
        policy(egressIP={"ipv4": "10.6.0.2"}),
        policy(egressIP={"ipv4": "10.6.0.1", "ipv6": ""}),
        "spec.egressIP",
        IMMUTABLE,
    ),
]
"""Kind, the stored document, a bad and a good change of it, and field and sentence of the refusal."""


@pytest.fixture(autouse=True)
def knows_rules(plane: ControlPlane) -> None:
    if plane.version < Version(1, 28):
        pytest.skip("this API server is older than the rules' fields")


def path_of(resource: Resource[Any], document: Document, *, named: bool = False) -> str:
    metadata = document["metadata"]
    return resource.path(namespace=metadata.get("namespace", ""), name=metadata["name"] if named else "")


def body_of(resource: Resource[Any], document: Document) -> bytes:
    return json.dumps(
        {"apiVersion": f"{resource.group}/{resource.version}", "kind": resource.kind, **document}
    ).encode()


def causes(answer: bytes) -> list[tuple[str, str]]:
    """Field and message of each."""
    return [(cause["field"], cause["message"]) for cause in json.loads(answer)["details"].get("causes", [])]


@pytest.mark.parametrize(("kind", "bad", "good", "field", "sentence"), CREATIONS)
def test_a_bad_object_is_refused_and_a_good_one_passes(
    plane: ControlPlane, kind: str, bad: Document, good: Document, field: str, sentence: str
) -> None:
    resource = RESOURCES[kind]
    status, answer = plane.request("POST", f"{path_of(resource, bad)}?dryRun=All", body_of(resource, bad))
    assert status == 422, answer
    expect_alone(answer, field, sentence)
    status, answer = plane.request("POST", f"{path_of(resource, good)}?dryRun=All", body_of(resource, good))
    assert status == 201, answer


@pytest.fixture
def stored(plane: ControlPlane, kind: str, old: Document) -> Iterator[str]:
    """The path of the object, which exists during the test."""
    resource = RESOURCES[kind]
    status, answer = plane.request("POST", path_of(resource, old), body_of(resource, old))
    assert status == 201, answer
    path = path_of(resource, old, named=True)
    yield path
    status, answer = plane.request("DELETE", path)
    assert status == 200, answer


@pytest.mark.parametrize(("kind", "old", "bad", "good", "field", "sentence"), UPDATES)
def test_a_bad_change_is_refused_and_a_good_one_passes(
    plane: ControlPlane, stored: str, kind: str, bad: Document, good: Document, field: str, sentence: str
) -> None:
    for document, status in ((bad, 422), (good, 200)):
        found = plane.read(stored)
        kept = {field: found[field] for field in ("apiVersion", "kind", "metadata")}
        found = {**kept, **{field: value for field, value in document.items() if field != "metadata"}}
        got, answer = plane.request("PUT", f"{stored}?dryRun=All", json.dumps(found).encode())
        assert got == status, answer
        if got == 422:
            expect_alone(answer, field, sentence)


def expect_alone(answer: bytes, field: str, sentence: str) -> None:
    """The refusal has this cause and no other."""
    [(found, message)] = causes(answer)
    assert found == field
    # The API server puts the value before it, if that is short.
    assert re.fullmatch(rf"Invalid value: (.*: )?{re.escape(sentence)}", message, re.DOTALL), message


def test_no_rule_is_left_out() -> None:
    """By the field that it is about and what it says."""
    tried = [(case[0], re.sub(r"\[\d+\]", "[]", str(case[-2])), str(case[-1])) for case in (*CREATIONS, *UPDATES)]
    left_out = []
    for definition in (
        address_pool_definition(),
        address_block_definition(),
        egress_definition({"type": "object"}),
        egress_client_slice_definition(),
        egress_gateway_definition(),
        egress_gateway_policy_definition(),
    ):
        kind = definition["spec"]["names"]["kind"]
        for version in definition["spec"]["versions"]:
            for field, rule in find_rules(version["schema"]["openAPIV3Schema"]):
                if not any(case[:2] == (kind, field) and says(rule, case[2]) for case in tried):
                    left_out.append(f"{kind}, {field}: {rule['message']}")
    assert left_out == []


def find_rules(schema: Document, field: str = "") -> Iterator[tuple[str, Document]]:
    """Each rule below, and the field that it names; `[]` stands for any position."""
    for rule in schema.get(RULES, []):
        yield f"{field}{rule.get('fieldPath', '')}".removeprefix("."), rule
    for name, below in schema.get("properties", {}).items():
        yield from find_rules(below, f"{field}.{name}" if field else name)
    for below in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(below, dict):
            yield from find_rules(below, f"{field}[]")


def says(rule: Document, sentence: str) -> bool:
    """Whether it is the rule's message, or what its expression makes of values: that has its texts in it."""
    if "messageExpression" not in rule:
        return bool(rule["message"] == sentence)
    texts = rule["messageExpression"].split("'")[1::2]
    return all(text in sentence for text in texts if len(text) > 8)
