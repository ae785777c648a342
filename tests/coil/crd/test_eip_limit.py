"""What namespaces may have of policies and networks: what is refused, and which policies nodes do not serve."""

import msgspec
import pytest

from coil.crd.egress_gateway import PolicyRef
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.eip_limit import NamespaceLimits, find_excess, validate_gateway_usage, validate_usage
from tests.coil.crd.eip_object import PODS, placed, policy_document
from tests.coil.crd.eip_object import policy as eip_policy

LIMITS = NamespaceLimits(policies=3, networks=8)


def policy(
    name: str, networks: int = 0, *, namespace: str = "shop", subnets: int = 0, age: int = 0
) -> EgressGatewayPolicy:
    """`age` is in minutes."""
    document = policy_document(
        name,
        namespace,
        destSubnet=[f"192.0.2.{number}/32" for number in range(networks)],
        appliedTo={"podSubnet": [f"10.0.{number}.0/24" for number in range(subnets)]} if subnets else PODS,
    )
    document["metadata"]["creationTimestamp"] = f"2030-01-01T00:{59 - age:02}:00Z"
    return msgspec.convert(document, EgressGatewayPolicy)


def said(
    policy: EgressGatewayPolicy, *others: EgressGatewayPolicy, old: EgressGatewayPolicy | None = None
) -> list[str]:
    return [str(error) for error in validate_usage(policy, old, others, LIMITS)]


def names(*policies: EgressGatewayPolicy) -> set[str]:
    excess = find_excess(policies, LIMITS)
    assert {ref.namespace for ref in excess} <= {"shop"}
    return {ref.name for ref in excess}


def test_a_namespace_may_have_so_many_policies() -> None:
    there = [policy("a"), policy("b")]
    elsewhere = [policy(name, namespace="bank") for name in "abc"]
    assert said(policy("c"), *there, *elsewhere) == []
    assert said(policy("d"), *there, *elsewhere, policy("c")) == [
        "metadata.namespace: the namespace has 3 EgressGatewayPolicies, and may have 3: "
        "delete some, or ask an administrator"
    ]
    assert said(policy("c", 1), *there, policy("c"), policy("d"), old=policy("c")) == [], "it is there already"


def test_a_gateway_may_have_so_many_policies() -> None:
    """Those that it has been given, and those that ask for it and nobody has decided about yet."""
    asking, given, refused, other = (
        eip_policy("a", egressGatewayName="eg"),
        eip_policy("b", status=placed("eg")),
        eip_policy("c", egressGatewayName="eg", status={"conditions": [{"type": "Ready", "status": "False"}]}),
        eip_policy("d", egressGatewayName="eg2"),
    )
    there = [asking, given, refused, other]
    new = eip_policy("e", "bank", egressGatewayName="eg")
    assert validate_gateway_usage(new, "eg", there, 3) == []
    [error] = validate_gateway_usage(new, "eg", there, 2)
    assert str(error) == (
        "spec.egressGatewayName: the EgressGateway 'eg' has 2 policies, and may have 2: "
        "use another, or ask an administrator"
    )
    assert validate_gateway_usage(given, "eg", there, 2) == [], "it is there already"


@pytest.mark.parametrize("subnets", [0, 2])
def test_a_namespace_may_have_so_many_networks_together(subnets: int) -> None:
    there = [policy("a", 5), policy("b", 1), policy("a", 8, namespace="bank")]
    assert said(policy("c", 2 - subnets, subnets=subnets), *there) == []
    refusal = (
        "spec: 3 networks, beside 6 in other policies of the namespace, which may have 8 together: "
        "join some, or ask an administrator"
    )
    assert said(policy("c", 3 - subnets, subnets=subnets), *there) == [refusal]


def test_what_takes_no_more_than_before_is_let_in() -> None:
    """Also where the namespace has more than it may: the limits may have been higher."""
    there, old = [policy("a", 9)], policy("b", 4)
    assert said(policy("b", 4), *there, old, old=old) == []
    assert said(policy("b", 1), *there, old, old=old) == []
    assert said(policy("b", 5), *there, old, old=old) != []


def test_nodes_serve_the_oldest_policies_that_fit() -> None:
    assert names(policy("a", 4), policy("b", 4), policy("c")) == set()
    assert names(*(policy(name, namespace="bank") for name in "abc"), *(policy(name) for name in "bca")) == set()
    assert names(policy("a"), policy("b", age=1), policy("c", age=2), policy("d", age=3)) == {"a"}
    assert names(policy("a"), policy("b"), policy("c"), policy("d")) == {"d"}
    assert names(policy("a", 5, age=2), policy("b", 5, age=1), policy("c", 3)) == {"b"}, "what fits is served"


def test_they_are_the_same_in_any_order() -> None:
    policies = [policy(name, networks) for name, networks in zip("abcdef", (3, 4, 2, 1, 5, 0), strict=True)]
    found = find_excess(policies, LIMITS)
    assert found == find_excess(reversed(policies), LIMITS)
    assert PolicyRef(namespace="shop", name="a") not in found
