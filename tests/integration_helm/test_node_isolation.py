"""What the programs on a node may write is held to the objects of that node, kind by kind."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from integration.access.right import chart_rights
from integration.helm.chart import Document, profile_names, render
from tests.integration_helm.everything import names

NODE_ACCOUNTS: Final = {"coild", "coil-egress-node"}
OPERATIONS: Final = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE"}
POOLS: Final[dict[str, Any]] = {"eip": {"enabled": True}, "routeSync": {"enabled": True}}
CHAINED: Final[dict[str, Any]] = {"ipam": {"enabled": False}, "cni": {"before": [{"type": "ptp"}]}}
POLICY_KINDS: Final = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
Write = tuple[str, str, str, str]
"""Account, operation, group and resource."""


def granted(documents: list[Document]) -> set[Write]:
    """All but Events, which may be about anything."""
    return {
        (right.account, OPERATIONS[right.verb], right.group, right.resource)
        for right in chart_rights(documents)
        if right.account in NODE_ACCOUNTS and right.verb in OPERATIONS and right.resource != "events"
    }


def guarded(documents: list[Document]) -> Iterator[Write]:
    for document in documents:
        if document["kind"] != "ValidatingAdmissionPolicy":
            continue
        conditions = " ".join(each["expression"] for each in document["spec"].get("matchConditions", ()))
        if not (account := re.fullmatch(r"request\.userInfo\.username == '\S+:([^':]+)'", conditions)):
            continue  # about tenants
        for rule in document["spec"]["matchConstraints"]["resourceRules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for operation in rule["operations"]:
                        yield account[1], operation, group, resource


@pytest.mark.parametrize("values", [POOLS, CHAINED, {"coild": {"setNetworkUnavailable": True}}], ids=str)
def test_a_policy_is_about_each_right_to_write(values: Mapping[str, object]) -> None:
    documents = render(values, kubernetes="1.34.0")
    assert granted(documents)
    assert granted(documents) <= set(guarded(documents))


@pytest.mark.parametrize("profile", profile_names())
def test_so_it_is_with_each_profile(profile: str) -> None:
    documents = render({"aws": {"clusterName": "blue"}}, profile, kubernetes="1.34.0")
    assert granted(documents) <= set(guarded(documents))


def test_every_policy_is_bound_and_denies() -> None:
    documents = render(POOLS, kubernetes="1.34.0")
    policies, bindings = ([each for each in documents if each["kind"] == kind] for kind in POLICY_KINDS)
    assert {policy["metadata"]["name"] for policy in policies} == {each["spec"]["policyName"] for each in bindings}
    assert all(each["spec"]["validationActions"] == ["Deny"] for each in bindings)
    assert all(policy["spec"]["failurePolicy"] == "Fail" for policy in policies)


def test_they_are_there_where_the_api_is_unless_they_are_not_wanted() -> None:
    assert names(render(POOLS, kubernetes="1.29.9"), *POLICY_KINDS) == set()
    assert names(render({**POOLS, "nodeIsolation": False}, kubernetes="1.34.0"), *POLICY_KINDS) == set()
    # A former chart has no such value (--reuse-values).
    expected = names(render(POOLS, kubernetes="1.30.3-eks-1a2b3c4"), *POLICY_KINDS)
    assert names(render({**POOLS, "nodeIsolation": None}, kubernetes="1.34.0"), *POLICY_KINDS) == expected != set()


def test_a_policy_is_about_the_account_of_its_release() -> None:
    documents = render(POOLS, kubernetes="1.34.0", namespace="coil-system")
    for document in documents:
        if document["kind"] == "ValidatingAdmissionPolicy":
            [condition] = document["spec"]["matchConditions"]
            assert "'system:serviceaccount:coil-system:" in condition["expression"]
