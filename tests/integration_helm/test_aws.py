"""Addresses of network interfaces in the chart: what its programs are told, and what they may do."""

from pathlib import Path
from typing import Any

import pytest

from coil.eni.warm_pool import WarmTargets
from coil.kernel.nft_table import PortChoice
from coild.eni.settings import EniSettings, read_eni_settings
from integration.access.right import chart_rights
from integration.helm.chart import Document, render
from tests.integration_helm.everything import (
    WITH_COILD,
    all_containers,
    names,
    pick,
    pod_spec,
    programs,
    without_record,
)

ROLE = {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/coil"}
VALUES: dict[str, Any] = {
    "ipam": {"addressSource": "aws-eni", "serviceAccount": {"annotations": ROLE}},
    "coild": {"serviceAccount": {"annotations": ROLE}},
    "aws": {
        "clusterName": "blue",
        "region": "ap-northeast-1",
        "targets": {
            "WARM_ENI_TARGET": 0,
            "WARM_IP_TARGET": 5,
            "MINIMUM_IP_TARGET": 12,
            "WARM_PREFIX_TARGET": 1,
            "MAX_ENI": 4,
        },
        "prefixDelegation": True,
        "externalSNAT": True,
        "randomizeSNAT": "plain",
        "excludeSNATCIDRs": ["192.168.0.0/16", "172.16.0.0/12"],
        "securityGroups": ["sg-0123456789abcdef0", "sg-1"],
        "podMetadataAccess": True,
        "ec2Endpoint": "https://vpce-1.ec2.ap-northeast-1.vpce.amazonaws.com",
        "metadataEndpoint": "http://[fd00:ec2::254]",
    },
}


def node_settings(documents: list[Document]) -> EniSettings:
    return read_eni_settings(programs(documents)["coild"])


def test_what_a_node_is_told_by_default() -> None:
    documents = render(None, "aws-eni")
    assert node_settings(documents) == EniSettings(cluster="my-cluster")
    coild = programs(documents)["coild"]
    assert (coild.address_source, coild.ec2_endpoint, coild.metadata_endpoint) == ("aws-eni", None, None)


def test_every_value_reaches_the_node() -> None:
    documents = render(VALUES)
    known = node_settings(documents)
    assert known.targets == WarmTargets(interfaces=0, ips=5, minimum=12, prefixes=1, max_interfaces=4)
    assert (known.cluster, known.prefixes, known.version, known.external_snat) == ("blue", True, 4, True)
    assert known.snat_ports is PortChoice.RANDOM
    assert [str(network) for network in known.excluded] == ["192.168.0.0/16", "172.16.0.0/12"]
    assert (known.groups, known.metadata_access) == (("sg-0123456789abcdef0", "sg-1"), True)
    assert node_settings(render({**VALUES, "aws": {**VALUES["aws"], "ipv6": True}})).version == 6


def test_the_controller_is_told_the_same() -> None:
    told = programs(render(VALUES))
    controller, coild = told["coil-ipam-controller"], told["coild"]
    for name in ("address_source", "cluster_name", "ec2_endpoint", "metadata_endpoint"):
        assert getattr(controller, name) == getattr(coild, name), name
    assert controller.aws_region == "ap-northeast-1"
    assert programs(render(None, "aws-eni"))["coil-ipam-controller"].aws_region == ""


def test_the_journal_survives_a_reboot_of_the_node() -> None:
    coild = pick(render(None, "aws-eni"), "DaemonSet", "coild")
    journal: Path = programs([coild])["coild"].journal
    mounts = {Path(each["mountPath"]): each["name"] for each in all_containers(coild)["coild"]["volumeMounts"]}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod_spec(coild)["volumes"]}
    assert not journal.is_relative_to("/run")
    assert paths[mounts[journal.parent]] == "/var/lib/coil"


@pytest.mark.parametrize("profile", WITH_COILD)
def test_pools_know_nothing_of_it(profile: str) -> None:
    documents = render(None, profile)
    mode = profile == "aws-eni"
    coild = pick(documents, "DaemonSet", "coild")
    assert ("state" in {volume["name"] for volume in pod_spec(coild)["volumes"]}) == (profile in ("aws-eni", "neutron"))
    assert ("WARM_ENI_TARGET" in {entry["name"] for entry in all_containers(coild)["coild"]["env"]}) == mode


def test_what_the_mode_adds_to_the_rights() -> None:
    """It needs to say in the Node's conditions what it has to, also where no policy keeps nodes apart."""
    former = "1.29.9"
    present = chart_rights(render(kubernetes=former))
    added = [right for right in chart_rights(render(VALUES, kubernetes=former)) if right not in present]
    assert [(right.account, right.verb, right.resource) for right in added] == [("coild", "patch", "nodes/status")]
    assert [right for right in chart_rights(render(VALUES)) if right not in chart_rights(render())] == []


@pytest.mark.parametrize(
    ("values", "kubernetes", "conditions"),
    [
        ({}, "1.34.0", ["--node-conditions=true"]),
        ({}, "1.29.9", []),
        ({"aws": {"nodeStatusPolicy": False}}, "1.34.0", []),
        ({"coild": {"nodeConditions": False}}, "1.34.0", []),
        ({"coild": {"nodeConditions": None}}, "1.34.0", ["--node-conditions=true"]),
        (
            {"coild": {"nodeConditions": False, "setNetworkUnavailable": True}},
            "1.34.0",
            ["--set-network-unavailable=true"],
        ),
        ({"coild": {"setNetworkUnavailable": True}}, "1.29.9", ["--set-network-unavailable=true"]),
    ],
)
def test_coild_writes_conditions_where_a_policy_keeps_nodes_apart_or_where_it_is_told_to(
    values: dict[str, object], kubernetes: str, conditions: list[str]
) -> None:
    documents = render(values, kubernetes=kubernetes)
    arguments = all_containers(pick(documents, "DaemonSet", "coild"))["coild"]["args"]
    flags = ("--node-conditions", "--set-network-unavailable")
    assert [argument for argument in arguments if argument.startswith(flags)] == conditions
    assert ("coild-node-condition" in names(documents, "ClusterRole")) == bool(conditions)
    has_policy = kubernetes == "1.34.0" and bool(conditions)
    assert ("coild-own-node" in names(documents, "ValidatingAdmissionPolicy")) == has_policy


def test_the_policy_allows_no_condition_that_coild_is_not_told_to_set() -> None:
    for told in (False, True):
        documents = render({"coild": {"setNetworkUnavailable": told}}, kubernetes="1.34.0")
        policy = pick(documents, "ValidatingAdmissionPolicy", "coild-own-node")
        others = policy["spec"]["variables"][1]["expression"]
        assert "'CoilPodTrafficDropped'" in others
        assert ("'NetworkUnavailable'" in others) == told


def test_what_the_mode_takes_from_the_rights() -> None:
    """A node gets nothing from pools, so it has no business with them."""
    lost = {right for right in chart_rights(render()) if right not in chart_rights(render(VALUES))}
    assert {right.account for right in lost} == {"coild"}
    assert {right.resource for right in lost} == {"addresspools", "addressblocks", "blockrequests"}


def policies(values: dict[str, object], kubernetes: str = "1.34.0") -> set[str]:
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    return names(render(values, kubernetes=kubernetes), *kinds)


def test_the_policy_for_the_nodes_status_is_there_where_the_api_is_unless_it_is_not_wanted() -> None:
    both = {"coild-own-node", "coild-own-clients"}
    assert policies(VALUES) == policies(VALUES, "1.30.3-eks-1a2b3c4") == both
    assert policies(VALUES, "1.29.9") == set()
    assert policies({**VALUES, "aws": {**VALUES["aws"], "nodeStatusPolicy": False}}) == {"coild-own-clients"}
    # A former chart has no such value (--reuse-values).
    assert policies({**VALUES, "aws": {**VALUES["aws"], "nodeStatusPolicy": None}}) == both


def test_accounts_may_have_roles_in_aws() -> None:
    documents = render(VALUES)
    for name in ("coild", "coil-ipam-controller"):
        assert pick(documents, "ServiceAccount", name)["metadata"]["annotations"] == ROLE
        assert "annotations" not in pick(render(), "ServiceAccount", name)["metadata"]


def test_an_upgrade_may_reuse_values_of_a_chart_that_did_not_have_it() -> None:
    former = render({"aws": None, "ipam": {"addressSource": None, "serviceAccount": None}})
    assert without_record(former) == without_record(render())


def test_coild_hears_of_changes_in_pods_namespaces() -> None:
    coild = all_containers(pick(render(None, "aws-eni"), "DaemonSet", "coild"))["coild"]
    assert coild["securityContext"]["capabilities"]["add"] == ["NET_ADMIN", "SYS_ADMIN", "NET_BROADCAST"]
