"""What a check tells of a cluster that egressgateway 0.6 runs."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from coil.crd.builtin import ConfigMap
from coil.crd.eip_schema import eip_definitions
from coil.crd.foreign_network import CalicoPool, CalicoPoolSpec
from coil.crd.meta import ObjectMeta
from coil_migrator.check.cluster import Cluster
from coil_migrator.check.egressgateway_object import Untyped
from coil_migrator.check.finding import Finding, Severity, exit_code, merge_values
from coil_migrator.check.report import check
from coil_migrator.workload import Workload
from tests.coil_migrator.check.coil_v2 import node, pod, service_cidr
from tests.coil_migrator.check.egressgateway_0_6 import (
    FEATURE,
    GROUP,
    PLACE,
    cluster,
    gateway,
    namespace,
    policy,
    program,
    stored,
)

OURS = {
    definition["metadata"]["name"]: definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"]
    for definition in eip_definitions()
}


CALICO_POOL = CalicoPool(metadata=ObjectMeta(name="pods"), spec=CalicoPoolSpec(cidr="10.50.0.0/16"))
KUBEADM_CONFIG = ("kube-system", "kubeadm-config")
KUBEADM_NETWORKS = ConfigMap(
    metadata=ObjectMeta(namespace=KUBEADM_CONFIG[0], name=KUBEADM_CONFIG[1]),
    data={"ClusterConfiguration": "networking: {serviceSubnet: 10.52.0.0/16}"},
)


def stored_tunnel(name: str, ipv4: Any) -> Untyped:
    """With what its agent has told of the node's link."""
    return stored({"metadata": {"name": name}}, {"tunnel": {"parent": {"name": "eth0", "ipv4": ipv4}}})


RR: dict[str, Any] = {"egressIP": {"allocatorPolicy": "rr"}}


def of(found: Cluster, subject: str, severity: Severity | None = None) -> list[str]:
    """The messages about one object."""
    return [
        finding.message
        for finding in check(found)
        if finding.subject == subject and severity in (None, finding.severity)
    ]


def objects(*gateways: Untyped, policies: tuple[Untyped, ...] = (), **fields: Any) -> Cluster:
    spaces = tuple(map(namespace, ("bank", "shop", PLACE)))
    return cluster(gateways=gateways or (gateway(),), egress_policies=policies, namespaces=spaces, **fields)


# --- the installation


def test_its_programs_with_the_defaults_are_changes_only() -> None:
    findings = check(cluster())
    assert exit_code(findings) == 3
    assert [finding.subject for finding in findings] == [
        "DaemonSet kube-system/egressgateway-agent",
        "Deployment kube-system/egressgateway-controller",
        "CustomResourceDefinitions "
        + ", ".join(
            f"{plural}.{GROUP}"
            for plural in (
                *("egressclusterinfos", "egressclusterpolicies", "egressendpointslices", "egressgateways"),
                *("egresspolicies", "egresstunnels"),
            )
        ),
        f"CustomResourceDefinition egressclusterendpointslices.{GROUP}",
        "ConfigMap kube-system/egressgateway",
        "ConfigMap kube-system/egressgateway",
    ]
    assert merge_values(findings) == {
        "eip": {"enabled": True, "egressPolicies": True, "announcedInterfacesToExclude": ["^cali.*", "br-*"]}
    }


def test_the_chart_s_own_kinds_and_programs_are_none_of_egressgateway() -> None:
    labels = {"app.kubernetes.io/name": "coil", "helm.sh/chart": "coil-0.1.0"}
    agent = program("DaemonSet", "coil-egress-agent-node")
    agent["metadata"]["labels"] = {**labels, "app.kubernetes.io/component": "egress-agent-node"}
    ours = Cluster(workloads=(("DaemonSet", msgspec.convert(agent, Workload)),), definitions={**OURS, "pods": ""})
    assert check(ours) == []
    both = cluster(workloads=(*cluster().workloads, *ours.workloads))
    [finding] = [finding for finding in check(both) if finding.severity is Severity.MUST_MEND]
    assert finding.subject == "DaemonSets kube-system/egressgateway-agent, kube-system/coil-egress-agent-node"
    assert finding.remedy.startswith("set eip.enabled to false, uninstall egressgateway, then")


def leftovers() -> dict[str, Any]:
    webhook = (ObjectMeta(name="egressgateway-controller"),)
    return {
        "named": {"MutatingWebhookConfiguration": webhook, "ServiceAccount": webhook},
        "tunnels": (
            Untyped(metadata=ObjectMeta(name="n1", finalizers=(f"{GROUP}/egresstunnel",))),
            Untyped(metadata=ObjectMeta(name="n2")),
        ),
        "former_slices": (ObjectMeta(name="a-1", namespace="shop"), ObjectMeta(name="a-2", namespace="shop")),
        "gateways": (gateway(status={"nodeList": [{"name": 5}]}),),
    }


def test_what_it_leaves_behind_must_be_mended_once_it_has_ended() -> None:
    subjects = {
        "MutatingWebhookConfiguration egressgateway-controller",
        "EgressTunnel n1",
        "EgressGateway office",
    }
    slices = "EgressEndpointSlices shop/a-1, shop/a-2"
    running, ended = cluster(**leftovers()), cluster(workloads=(), **leftovers())
    assert {*subjects, slices} <= {each.subject for each in check(running) if each.severity is Severity.CHANGES}
    assert exit_code(check(running)) == 3
    mended = {finding.subject for finding in check(ended) if finding.severity is Severity.MUST_MEND}
    assert {subject.partition(" ")[0] for subject in mended - subjects} == {"CustomResourceDefinitions"}
    assert subjects < mended
    [remedy] = [each.remedy for each in check(ended) if each.message.startswith("its status cannot be read")]
    assert """patch egressgateway office --subresource status --type merge --patch '{"status": null}'""" in remedy


# --- its settings


@pytest.mark.parametrize(
    ("before", "after", "values"),
    [
        ("port: 7789", "port: 4790", {"tunnelPort": 4790}),
        ("id: 100", "id: 7", {"tunnelVNI": 7}),
        ("172.31.0.0/16", "10.31.0.0/16", {"tunnelIPv4Subnet": "10.31.0.0/16"}),
        ("fd11::/112", "fd31::/112", {"tunnelIPv6Subnet": "fd31::/112"}),
        ("Offload: false", "Offload: true", {"tunnelChecksumOffload": False}),
        ("Slice: 100", "Slice: 50", {"limits": {"endpointsPerSlice": 50}}),
        ("extraCidr: []", "extraCidr: [10.10.10.1, fd00::/64]", {"clusterCIDR": ["10.10.10.1/32", "fd00::/64"]}),
        ("{enable: false", "{enable: true", {"lease": "15s"}),
    ],
)
def test_settings_that_are_values(before: str, after: str, values: dict[str, Any]) -> None:
    assert FEATURE.count(before) == 1
    found = check(cluster(FEATURE.replace(before, after), definitions={}))
    assert merge_values(found)["eip"] == {"announcedInterfacesToExclude": ["^cali.*", "br-*"], **values}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("name: egress.vxlan", "name: eg0", "the link is always called egress.vxlan"),
        ("backendMode: auto", "backendMode: legacy", "nftables"),
        ("defaultRouteInterface", "interface=eth1", "with the Node's address"),
        ("enableIPv6: false", "enableIPv6: true", "both families are always on"),
        ("clusterIP: true", "clusterIP: false", "always the cluster's own"),
        ("ReplyRoute: false", "ReplyRoute: true", "replies always come back"),
        ("vxlan:", "mark: '0x27000000'\nvxlan:", "marks are always"),
        ("vxlan:", "unheard: of\nvxlan:", "unheard: of is no setting of the chart: none of egressgateway's"),
    ],
)
def test_settings_that_have_no_value_are_told(before: str, after: str, words: str) -> None:
    def of_settings(feature: str) -> list[Finding]:
        found = check(cluster(feature, definitions={}))
        return [each for each in found if each.subject.startswith("ConfigMap") and words in each.message]

    assert FEATURE.count(before) == 1
    assert of_settings(FEATURE) == []
    [finding] = of_settings(FEATURE.replace(before, after))
    assert (finding.severity, finding.values) == (Severity.CHANGES, {})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("port: 7789", "port: many"),
        ('["^cali.*", "br-*"]', '["(", "br-*"]'),
        ('["^cali.*", "br-*"]', '["a{1,2}"]'),
        ("172.31.0.0/16", "here"),
        ("extraCidr: []", "extraCidr: everywhere"),
    ],
)
def test_a_setting_that_cannot_be_a_value_must_be_looked_at(before: str, after: str) -> None:
    found = check(cluster(FEATURE.replace(before, after)))
    assert [finding.subject for finding in found if finding.severity is Severity.MUST_MEND] == [
        "ConfigMap kube-system/egressgateway"
    ]


def test_a_failover_that_takes_longer_than_a_lease_may_be() -> None:
    feature = FEATURE.replace("{enable: false", "{enable: true").replace(
        "eipEvictionTimeout: 15", "eipEvictionTimeout: 90"
    )
    found = check(cluster(feature, definitions={}))
    assert "lease" not in merge_values(found)["eip"]
    assert any(each.remedy == "eip.lease may be 60s at most" for each in found)


@pytest.mark.parametrize("feature", ["", "[]", "a: [", "a: 1\n---\nb: 2"])
def test_settings_that_cannot_be_read(feature: str) -> None:
    assert exit_code(check(cluster(feature))) == 4


def test_networks_of_an_egress_cluster_info_are_values() -> None:
    spec = {"autoDetect": {"clusterIP": True, "nodeIP": False, "podCidrMode": "auto"}, "extraCidr": ["10.10.0.0/16"]}
    info = stored({"metadata": {"name": "default"}, "spec": spec})
    found = check(Cluster(cluster_infos=(info,)))
    assert merge_values(found) == {"eip": {"clusterCIDR": ["10.10.0.0/16"]}}
    assert any("nodeIP: False" in finding.message for finding in found)
    assert {finding.subject for finding in found} == {"EgressClusterInfo default"}


# --- gateways


def test_a_gateway_as_it_is_stored_fails_closed_and_keeps_its_finalizer() -> None:
    found = [finding for finding in check(cluster(gateways=(gateway(),))) if finding.subject == "EgressGateway office"]
    assert [finding.remedy.partition(" ")[0] for finding in found] == [
        "when",
        "spec.failPolicy:",
        "spec.unservedFamily:",
    ]
    assert {finding.severity for finding in found} == {Severity.CHANGES}
    known = gateway(
        ippools={"ipv4": ["203.0.113.1"], "ipv4DefaultEIP": "203.0.113.1"},
        nodeSelector={"selector": {"matchLabels": {"egress": "true"}}, "policy": "AverageSelection"},
        failPolicy="Open",
    )
    assert of(cluster(gateways=(known,)), "EgressGateway office") == [found[0].message]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"ippools": {"ipv4": ["203.0.113.9"], "ipv4DefaultEIP": "203.0.113.8"}},
            "ipv4DefaultEIP: '203.0.113.8' is not",
        ),
        ({"ippools": {"ipv4": ["203.0.113.1", "203.0.113.1-203.0.113.2"]}}, "that an earlier entry has"),
        ({"ippools": {"ipv4": ["203.0.113.1"], "ipv6": ["fd00::1-fd00::2"]}}, "equally many"),
        ({"ippools": {"ipv4": ["192.168.0.9-192.168.0.11"]}}, "192.168.0.10' of the Node 'n1'"),
        ({"ippools": {"ipv4": ["10.96.0.5"]}}, "of the ServiceCIDR 'kubernetes'"),
        ({"ippools": {"ipv4": ["172.31.0.5"]}}, "of the tunnels between nodes"),
        ({"ippools": {"ipv4": ["10.50.0.5"]}}, "of the IPPool 'pods' of Calico"),
        ({"ippools": {"ipv4": ["10.52.0.5"]}}, "of the pods and Services (the ConfigMap 'kube-system/kubeadm-config')"),
        (
            {"ippools": {"ipv4": ["192.168.0.252/30"]}},
            "192.168.0.255, which is the broadcast address of 192.168.0.0/24",
        ),
        ({"ippools": {"ipv4": ["198.51.100.1-198.51.100.3"]}}, "of the gateway 'other'"),
        ({"clusterDefault": True}, "true for one gateway only, and is for 'other'"),
        ({"nodeSelector": {"selector": {}}}, "spec.nodeSelector.selector: must not be empty"),
        ({"ippools": {"ipv4": "203.0.113.9"}}, "cannot be read: Expected `array`"),
    ],
)
def test_gateways_that_would_be_refused(spec: dict[str, Any], words: str) -> None:
    other = gateway("other", ippools={"ipv4": ["198.51.100.2"], "ipv4DefaultEIP": "198.51.100.2"}, clusterDefault=True)
    found = cluster(
        gateways=(gateway(**spec), other),
        nodes=(node("n1", "192.168.0.10"),),
        service_cidrs=(service_cidr("10.96.0.0/12"),),
        calico_pools=(CALICO_POOL,),
        config_maps={KUBEADM_CONFIG: KUBEADM_NETWORKS},
        tunnels=(stored_tunnel("n1", "192.168.0.10/24"), stored_tunnel("n2", 5)),
    )
    messages = of(found, "EgressGateway office", Severity.MUST_MEND)
    assert any(words in message for message in messages), messages


def test_gateways_that_mean_something_else() -> None:
    pools = {"ipv4": ["203.0.113.0/28"], "ipv6": ["fd00::1-fd00::10", ""]}
    messages = of(cluster(gateways=(gateway(ippools=pools),)), "EgressGateway office", Severity.CHANGES)
    assert any("has no ipv4DefaultEIP and no ipv6DefaultEIP" in message for message in messages)
    assert any(message.startswith("of 203.0.113.0/28, every address") for message in messages)
    assert not any("only: what the pods" in message for message in messages)
    selector = {"policy": "doing", "selector": {"matchLabels": {"egress": "true"}}}
    [message] = of(cluster(gateways=(gateway(nodeSelector=selector),)), "EgressGateway office", Severity.NOTE)
    assert message.startswith("spec.nodeSelector.policy 'doing' has no meaning")


# --- policies


def test_policies_that_go_on_as_they_are() -> None:
    policies = (
        policy("plain", "shop", today="203.0.113.4"),
        policy("same", "bank", today="203.0.113.4"),
        policy("fixed", "shop", today="203.0.113.2", egressIP={"ipv4": "203.0.113.2"}, destSubnet=["198.51.100.7/32"]),
        policy("node", "shop", egressIP={"useNodeIP": True}),
        policy("all", today="203.0.113.4", destSubnet=["198.51.100.0/24"]),
    )
    quiet = cluster(gateways=(gateway(),))
    assert [each.subject for each in check(objects(policies=policies))] == [each.subject for each in check(quiet)]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"appliedTo": {}, "egressIP": {"ipv4": "203.0.113.9"}}, "must have either a podSelector"),
        ({"appliedTo": {}}, "must have either a podSelector or a podSubnet"),
        (
            {"appliedTo": {"podSelector": {}, "podSubnet": ["10.0.0.0/8"]}},
            "must have either a podSelector or a podSubnet",
        ),
        ({"egressIP": {"ipv4": "fd00::1"}}, "is an IPv6 address, not IPv4"),
        ({"egressIP": {"ipv4": "203.0.113.9"}}, "is not an address of the gateway 'office'"),
        ({"egressIP": {"ipv4": "203.0.113.1", "useNodeIP": True}}, "and for the node's own"),
        ({"egressIP": {"allocatorPolicy": "best"}}, "allocatorPolicy 'best' means default there"),
        ({"destSubnet": ["198.51.100.1"]}, "is not a network in CIDR notation"),
        ({"destSubnet": ["198.51.100.0/24", "198.51.100.0/24"]}, "spec.destSubnet has a network twice"),
        ({"destSubnet": 5}, "cannot be read: Expected `array`"),
    ],
)
@pytest.mark.parametrize("place", ["shop", ""])
def test_policies_that_would_be_refused(spec: dict[str, Any], words: str, place: str) -> None:
    found = objects(policies=(policy("a", place, **spec),))
    [message] = of(found, "EgressPolicy shop/a" if place else "EgressClusterPolicy a", Severity.MUST_MEND)
    assert words in message


@pytest.mark.parametrize(("sharing", "refused"), [({}, 0), ({"sharing": "Namespace"}, 1)])
def test_an_address_is_for_all_namespaces_unless_the_gateway_says_otherwise(
    sharing: dict[str, Any], refused: int
) -> None:
    asked: dict[str, Any] = {"egressIP": {"ipv4": "203.0.113.2"}}
    younger, older = policy("a", "bank", created=2, **asked), policy("b", "shop", created=1, **asked)
    office = gateway(ippools={"ipv4": ["203.0.113.1-203.0.113.6"], "ipv4DefaultEIP": "203.0.113.4"}, **sharing)
    found = objects(office, policies=(younger, older, policy("c", "shop", created=3, **asked)))
    reason = "spec.egressIP.ipv4: is the address of a policy in another namespace; ask for another"
    messages = of(found, "EgressPolicy bank/a", Severity.MUST_MEND)
    assert messages == [f"it would not be served: {reason}"] * refused
    assert of(found, "EgressPolicy shop/b") == of(found, "EgressPolicy shop/c") == []


def test_a_namespace_with_more_policies_than_it_may_have() -> None:
    many = tuple(policy(f"p{number:03}", "shop") for number in range(501))
    refused = [each for each in check(objects(policies=many)) if each.severity is Severity.MUST_MEND]
    assert [each.subject for each in refused] == ["EgressPolicy shop/p500"]
    assert refused[0].message == "it would not be served: the namespace would exceed eip.limits"


def test_policies_that_only_the_placement_refuses() -> None:
    """Nobody holds the default address yet when the second one is admitted."""
    policies = (policy("a", "bank"), policy("b", "shop", created=2, egressIP={"ipv4": "203.0.113.4"}))
    office = gateway(ippools={"ipv4": ["203.0.113.4"], "ipv4DefaultEIP": "203.0.113.4"}, sharing="Namespace")
    [finding] = [each for each in check(objects(office, policies=policies)) if each.severity is Severity.MUST_MEND]
    assert finding.subject == "EgressPolicy shop/b"
    assert finding.message == "it would not be served: 203.0.113.4 is bound to a policy of another namespace"


def test_a_gateway_with_too_few_addresses() -> None:
    pools: dict[str, Any] = {"ippools": {"ipv4": ["203.0.113.1"], "ipv4DefaultEIP": "203.0.113.1"}}
    found = objects(gateway(**pools), policies=(policy("a", "shop", **RR), policy("b", "shop", created=2, **RR)))
    assert of(found, "EgressPolicy shop/b", Severity.MUST_MEND) == [
        "it would not be served: every address is in use by others"
    ]


def test_addresses_of_today_that_nothing_says() -> None:
    policies = (
        policy("a", "shop", today="203.0.113.6", **RR),
        policy("b", "shop", today="203.0.113.5"),
        policy("c", today="203.0.113.3", **RR),
    )
    subjects = ("EgressPolicy shop/a", "EgressPolicy shop/b", "EgressClusterPolicy c")
    found = objects(policies=policies)
    for subject, address in zip(subjects, ("203.0.113.6", "203.0.113.5", "203.0.113.3"), strict=True):
        [message] = of(found, subject)
        assert message.startswith(f"has {address} today, to which neither its spec nor the gateway's status leads")


def test_addresses_that_the_status_of_the_gateway_keeps() -> None:
    """As egressgateway writes it, an EgressClusterPolicy without a namespace."""
    policies = (policy("a", "shop", today="203.0.113.6", **RR), policy("c", today="203.0.113.3", **RR))
    eips = [
        {"ipv4": "203.0.113.6", "policies": [{"name": "a", "namespace": "shop"}]},
        {"ipv4": "203.0.113.3", "policies": [{"name": "c"}]},
    ]
    office = gateway(status={"nodeList": [{"name": "n1", "status": "Ready", "eips": eips}]})
    found = objects(office, policies=policies)
    assert of(found, "EgressPolicy shop/a") == of(found, "EgressClusterPolicy c") == []


def test_what_means_something_else() -> None:
    policies = (
        policy("subnet", "shop", appliedTo={"podSubnet": ["10.10.0.0/16"]}),
        policy("first", "shop", priority=100),
        policy("inner", "shop", destSubnet=["192.168.0.10/32", "198.51.100.0/24"]),
        policy("pods", "shop", destSubnet=["10.50.1.0/24"]),
        policy("added", "shop", destSubnet=["10.54.1.0/24"]),
        policy("empty", "shop", egressIP={"allocatorPolicy": ""}),
    )
    infos = (
        stored({"metadata": {"name": "default"}, "spec": {"extraCidr": ["10.54.0.0/16"]}}),
        stored({"metadata": {"name": "other"}, "spec": {"extraCidr": 5}}),
    )
    found = objects(
        policies=policies, nodes=(node("n1", "192.168.0.10"),), calico_pools=(CALICO_POOL,), cluster_infos=infos
    )
    names = ("subnet", "first", "inner", "pods", "added", "empty")
    told = {name: of(found, f"EgressPolicy shop/{name}") for name in names}
    assert [len(messages) for messages in told.values()] == [1, 1, 1, 1, 1, 1]
    assert "a right of its author: 10.50.1.0/24 of the IPPool 'pods' of Calico" in told["pods"][0]
    assert "a right of its author: 10.54.1.0/24 of the cluster (the EgressClusterInfo 'default')" in told["added"][0]
    assert "podSubnet selects no pods, there or here" in told["subnet"][0]
    assert "spec.priority 100 has no effect there" in told["first"][0]
    assert "a right of its author: 192.168.0.10/32 of the Node 'n1'" in told["inner"][0]
    assert "means default there; here, the gateway's ranges.policy" in told["empty"][0]
    served = replace(
        found,
        egress_policies=tuple(
            msgspec.structs.replace(each, status={"conditions": [{"type": "Ready", "status": "True"}]})
            for each in found.egress_policies[:3]
        ),
    )
    assert [each for each in check(served) if each.subject.startswith("EgressPolicy")] == []


def web(name: str, place: str, *, host_network: bool = False) -> Any:
    found = pod(name, host_network=host_network)
    return msgspec.structs.replace(found, metadata=ObjectMeta(name=name, namespace=place, labels={"app": "web"}))


def test_pods_that_a_policy_selects() -> None:
    pods = (web("dns", PLACE), web("proxy", PLACE, host_network=True), web("front", "shop"), web("edge", "elsewhere"))
    found = objects(policies=(policy("all"), policy("own", PLACE, created=2)), pods=pods)
    assert of(found, "EgressClusterPolicy all") == [
        "selects pods with their node's network (kube-system/proxy), which no policy is about here",
        "selects pods of kube-system (dns): they depend on the gateway to start, and for all that they send out of the "
        "cluster",
    ]
    assert of(found, "EgressPolicy kube-system/own") == [
        "selects pods with their node's network (kube-system/proxy), which no policy is about here"
    ]


def test_a_policy_without_a_gateway_waits_there_and_here() -> None:
    found = objects(policies=(policy("a", "shop", egressGatewayName="gone"), policy("b", "shop", egressGatewayName="")))
    assert of(found, "EgressPolicy shop/a", Severity.NOTE) == ["it waits: there is no EgressGateway 'gone'"]
    assert len(of(found, "EgressPolicy shop/b", Severity.NOTE)) == 1
