"""The CRDs' CEL rules: each refuses what it is for, and none refuses what the validation in Python accepts."""

from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.egress_gateway_policy_schema import egress_gateway_policy_definition
from coil.crd.egress_gateway_schema import egress_gateway_definition
from coil.crd.eip_validation import validate_gateway, validate_policy, validate_policy_update
from tests.coil.crd.cel import Refusal, evaluate_rules
from tests.coil.crd.eip_object import NODES, PODS, Document, gateway_document, policy_document

GATEWAY: Document = egress_gateway_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
POLICY: Document = egress_gateway_policy_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
EMPTY = "must not be empty: it would have every node carry addresses"
VALUES = "In and NotIn need values, Exists and DoesNotExist have none"
EITHER = "must have either a podSelector or a podSubnet"
ASKS_BOTH = "must not ask for an address and for the node's own (useNodeIP)"
IMMUTABLE = "is immutable; delete the policy and create another"
SELECTOR = "spec.nodeSelector.selector"


@pytest.mark.parametrize(
    ("spec", "by"),
    [
        ({}, []),
        ({"nodeSelector": {"selector": {}}}, [(SELECTOR, EMPTY)]),
        ({"nodeSelector": {"selector": {"matchLabels": {}, "matchExpressions": []}}}, [(SELECTOR, EMPTY)]),
        (
            {"nodeSelector": {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}},
            [(f"{SELECTOR}.matchExpressions[0].values", VALUES)],
        ),
        ({"nodeSelector": {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}}, []),
        (
            {"allowedNamespaces": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
            [("spec.allowedNamespaces.matchExpressions[0].values", VALUES)],
        ),
        ({"allowedNamespaces": {}}, []),
    ],
)
def test_a_gateway_is_refused(spec: dict[str, Any], by: list[tuple[str, str]]) -> None:
    assert evaluate_rules(GATEWAY, gateway_document(**spec)) == [Refusal(*each) for each in by]


@pytest.mark.parametrize(
    ("spec", "by"),
    [
        ({}, []),
        ({"egressIP": None}, []),
        ({"egressIP": {"useNodeIP": True, "ipv4": ""}}, []),
        ({"egressIP": {"useNodeIP": True, "ipv4": "10.6.0.1"}}, [("spec.egressIP", ASKS_BOTH)]),
        ({"egressIP": {"useNodeIP": True, "ipv6": "fd00::1"}}, [("spec.egressIP", ASKS_BOTH)]),
        ({"appliedTo": {}}, [("spec.appliedTo", EITHER)]),
        ({"appliedTo": {"podSubnet": []}}, [("spec.appliedTo", EITHER)]),
        ({"appliedTo": {"podSubnet": ["10.0.0.0/8"]}}, []),
        ({"appliedTo": {"podSelector": {}, "podSubnet": []}}, []),
        ({"appliedTo": {"podSelector": {}, "podSubnet": ["10.0.0.0/8"]}}, [("spec.appliedTo", EITHER)]),
    ],
)
def test_a_policy_is_refused(spec: dict[str, Any], by: list[tuple[str, str]]) -> None:
    assert evaluate_rules(POLICY, policy_document(**spec)) == [Refusal(*each) for each in by]


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        ({}, {"egressGatewayName": "", "egressIP": {"ipv4": ""}}, []),
        ({"egressGatewayName": "eg1"}, {}, ["egressGatewayName"]),
        ({}, {"egressGatewayName": "eg1"}, ["egressGatewayName"]),
        ({"egressIP": {"ipv4": "10.6.0.1"}}, {}, ["egressIP"]),
        ({}, {"egressIP": {"useNodeIP": True}}, ["egressIP"]),
        ({"egressIP": {"ipv4": "10.6.0.1"}}, {"egressIP": {"ipv4": "10.6.0.2"}}, ["egressIP"]),
        ({"priority": 1}, {"priority": 2, "destSubnet": ["10.0.0.0/8"], "appliedTo": {"podSelector": {}}}, []),
    ],
)
def test_what_stays(old: dict[str, Any], new: dict[str, Any], fields: list[str]) -> None:
    """Whether a field is written or left out makes no difference."""
    expected = [Refusal(f"spec.{field}", IMMUTABLE) for field in fields]
    assert evaluate_rules(POLICY, policy_document(**new), policy_document(**old)) == expected


TEXT4 = st.sampled_from(["", "10.6.0.1", "10.6.0.2", "nonsense"])
TEXT6 = st.sampled_from(["", "fd00::1", "fd00::2"])
EGRESS_IP = st.fixed_dictionaries({}, optional={"ipv4": TEXT4, "ipv6": TEXT6, "useNodeIP": st.booleans()})
REQUIREMENT = st.fixed_dictionaries(
    {"key": st.just("a"), "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"])},
    optional={"values": st.lists(st.just("b"), max_size=1)},
)
LABELS = st.dictionaries(st.just("a"), st.just("b"))
SELECTORS = st.fixed_dictionaries({}, optional={"matchLabels": LABELS, "matchExpressions": st.lists(REQUIREMENT)})
CIDRS = st.lists(st.sampled_from(["10.0.0.0/8", "fd00::/64", "x"]), max_size=2, unique=True)
APPLIED_TO = st.one_of(
    st.just(PODS), st.fixed_dictionaries({}, optional={"podSelector": SELECTORS, "podSubnet": CIDRS})
)
POLICIES = st.fixed_dictionaries(
    {"appliedTo": APPLIED_TO},
    optional={"egressIP": EGRESS_IP, "egressGatewayName": st.sampled_from(["", "eg1"]), "destSubnet": CIDRS},
)
GATEWAYS = st.fixed_dictionaries(
    {"nodeSelector": st.one_of(st.just(NODES), st.fixed_dictionaries({"selector": SELECTORS}))},
    optional={"allowedNamespaces": SELECTORS},
)


def refusing(pairs: list[Refusal], errors: list[Any]) -> None:
    event(f"CEL {'refuses' if pairs else 'accepts'}, validation {'refuses' if errors else 'accepts'}")
    assert errors or not pairs, f"refused although it is valid: {pairs}"


@settings(max_examples=100)
@given(GATEWAYS)
def test_no_valid_gateway_is_refused(spec: dict[str, Any]) -> None:
    document = gateway_document(**spec)
    refusing(evaluate_rules(GATEWAY, document), validate_gateway(msgspec.convert(document, EgressGateway)))


@settings(max_examples=100)
@given(POLICIES, POLICIES)
def test_no_valid_policy_is_refused(before: dict[str, Any], after: dict[str, Any]) -> None:
    old, new = policy_document(**before), policy_document(**after)
    old_policy, new_policy = msgspec.convert(old, EgressGatewayPolicy), msgspec.convert(new, EgressGatewayPolicy)
    errors = validate_policy(new_policy)
    refusing(evaluate_rules(POLICY, new), errors)
    changed = validate_policy_update(old_policy, new_policy)
    refused = evaluate_rules(POLICY, new, old)
    refusing(refused, errors + changed)
    assert bool(changed) == any(refusal.message == IMMUTABLE for refusal in refused)
