"""Accounts, roles, webhooks and monitoring in the chart: what a choice of values brings and what it leaves out."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.helm.chart import CHART, Document, render
from tests.integration_helm.everything import EVERYTHING, METRICS, ON_POD_NETWORK, WORKLOADS, names, pick, pod_spec

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROLES = ("ClusterRole", "Role")
BINDINGS = ("ClusterRoleBinding", "RoleBinding")


def rules(documents: list[Document], kind: str, name: str) -> list[tuple[tuple[str, ...], ...]]:
    return [
        tuple(tuple(rule.get(key, ())) for key in ("apiGroups", "resources", "verbs"))
        for rule in pick(documents, kind, name)["rules"]
    ]


def resources(documents: list[Document], kind: str, name: str) -> set[str]:
    return {resource for _, found, _ in rules(documents, kind, name) for resource in found}


def test_no_role_has_a_wildcard() -> None:
    for document in render(EVERYTHING):
        if document["kind"] in ROLES:
            for rule in document["rules"]:
                assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_accounts_are_in_the_namespace_of_the_release_and_bound_there() -> None:
    documents = render(EVERYTHING, namespace="coil-system")
    accounts = names(documents, "ServiceAccount")
    programs = {"coild", "coil-ipam-controller", "coil-egress-controller", "coil-egress-node", "coil-raven"}
    assert accounts == {*programs, "coil-test-nodes"}
    for document in documents:
        if document["kind"] == "ServiceAccount":
            assert document["metadata"]["namespace"] == "coil-system"
        for subject in document.get("subjects", ()):
            assert subject["name"] in accounts
            assert subject["namespace"] == "coil-system"
        for webhook in document.get("webhooks", ()):
            assert webhook["clientConfig"]["service"]["namespace"] == "coil-system"
    for workload in (document for document in documents if document["kind"] in WORKLOADS):
        assert pod_spec(workload).get("serviceAccountName", "default") in accounts | {"default"}


def test_every_binding_is_of_a_role_that_is_there() -> None:
    documents = render(EVERYTHING)
    for document in documents:
        if document["kind"] in BINDINGS:
            assert document["roleRef"]["name"] in names(documents, document["roleRef"]["kind"])


def test_whoever_may_view_a_namespace_sees_its_egresses() -> None:
    role = pick(render(), "ClusterRole", "coil-view")
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    kinds = ("addresspools", "addressblocks", "blockrequests", "egresses")
    assert rules(render(), "ClusterRole", "coil-view") == [(("coil.cybozu.com",), kinds, ("get", "list", "watch"))]


def test_only_route_sync_lets_nodes_read_all_nodes() -> None:
    assert "coild-nodes" not in names(render(), *ROLES, *BINDINGS)
    documents = render(None, "dual-stack")
    assert rules(documents, "ClusterRole", "coild-nodes") == [
        (("",), ("nodes",), ("list", "watch")),
        (("coil.cybozu.com",), ("addresspools",), ("list", "watch")),
    ]
    ports = render(None, "neutron")
    assert rules(ports, "ClusterRole", "coild-nodes") == [(("",), ("nodes",), ("list", "watch"))]


def test_without_floating_addresses_the_controller_reads_no_gateways() -> None:
    assert "egressgateways" not in resources(render(), "ClusterRole", "coil-egress-controller")
    documents = render(None, "eip-gateway")
    assert "egressgateways" in resources(documents, "ClusterRole", "coil-egress-controller")
    assert "coil-egressgateway-view" not in names(render(), "ClusterRole")
    webhooks = pick(render(), "ValidatingWebhookConfiguration", "coil-egress-controller")["webhooks"]
    assert [webhook["name"] for webhook in webhooks] == ["validate.egress.coil.cybozu.com"]


def test_only_where_egressgateways_policies_are_served_the_controller_writes_policies() -> None:
    written = (("egressgateway.spidernet.io",), ("egressgatewaypolicies",), ("create", "update", "delete"))
    served = render({"eip": {"enabled": True, "egressPolicies": True}}, kubernetes="1.30.0")
    without = render({"eip": {"enabled": True}}, kubernetes="1.30.0")
    for documents, expected in ((served, True), (without, False)):
        assert (written in rules(documents, "ClusterRole", "coil-egress-controller")) is expected
        webhooks = pick(documents, "ValidatingWebhookConfiguration", "coil-egress-controller")["webhooks"]
        asked = {kind for webhook in webhooks for rule in webhook["rules"] for kind in rule["resources"]}
        assert ({"egresspolicies", "egressclusterpolicies"} <= asked) is expected
        assert ("egresspolicies" in resources(documents, "ClusterRole", "coil-egressgatewaypolicy-edit")) is expected
        assert ("coil-egress-cluster-policies" in names(documents, "ValidatingAdmissionPolicy")) is expected
        command = pod_spec(pick(documents, "Deployment", "coil-egress-controller"))["containers"][0]["args"]
        assert ("--enable-egress-policies" in command) is expected
    # Nobody may write for the cluster, but whom the cluster's administrator lets.
    for document in served:
        if document["kind"] in ROLES:
            for rule in document["rules"]:
                if "egressclusterpolicies" in rule["resources"]:
                    assert set(rule["verbs"]) <= {"get", "list", "watch"}
    assert "coil-egress-cluster-policies" not in names(
        render({"eip": {"enabled": True, "egressPolicies": True}}, kubernetes="1.29.0"), "ValidatingAdmissionPolicy"
    )


def test_floating_addresses_alone_need_neither_coild_nor_router_pods() -> None:
    documents = render(None, "eip-only")
    workloads = names(documents, "Deployment", "DaemonSet") - {"coil-test-server"}
    assert workloads == {"coil-egress-controller", "coil-egress-agent-node"}
    assert names(documents, "ServiceAccount") - {"coil-test-nodes"} == {"coil-egress-controller", "coil-egress-node"}
    assert "coil-egress" not in names(documents, *ROLES)
    assert not {"egresses", "deployments", "rolebindings", "serviceaccounts", "poddisruptionbudgets"} & resources(
        documents, "ClusterRole", "coil-egress-controller"
    )
    (services,) = (
        rule
        for rule in pick(documents, "ClusterRole", "coil-egress-controller")["rules"]
        if "services" in rule["resources"]
    )
    assert (services["resourceNames"], services["verbs"]) == (["kubernetes"], ["list", "watch"])
    own = [
        each for each in documents if each["kind"] == "Role" and each["metadata"]["name"] == "coil-egress-controller"
    ]
    assert not any("pods" in rule["resources"] for role in own for rule in role["rules"])
    command = pod_spec(pick(documents, "Deployment", "coil-egress-controller"))["containers"][0]["args"]
    assert "--enable-egress=false" in command
    agent = pod_spec(pick(documents, "DaemonSet", "coil-egress-agent-node"))["containers"][0]["args"]
    assert not any(argument.startswith("--pod-start-socket") for argument in agent), "nobody would speak there"
    for binding in (document for document in documents if document["kind"] in BINDINGS):
        assert {subject["name"] for subject in binding["subjects"]} <= names(documents, "ServiceAccount")


def test_router_pods_read_no_pods() -> None:
    """Their account is in tenants' namespaces."""
    for documents in (render(), render(EVERYTHING)):
        assert "coil-egress" not in names(documents, *BINDINGS), "the controller binds it in namespaces with Egresses"
        assert rules(documents, "ClusterRole", "coil-egress") == [
            (("coil.cybozu.com",), ("egresses", "egressclientslices"), ("list", "watch"))
        ]
    former = render({"egress": {"routerImage": "example.com/coil:former", "routersReadPods": True}})
    assert (("",), ("pods",), ("list", "watch")) in rules(former, "ClusterRole", "coil-egress")
    assert not pick(former, "ClusterRoleBinding", "coil-egress").get("subjects")


def test_cert_manager_takes_the_right_to_secrets_from_the_controllers() -> None:
    documents = render(ON_POD_NETWORK)
    for name in ("coil-ipam-controller", "coil-egress-controller"):
        assert "secrets" in resources(render(), "Role", name)
        assert "secrets" not in resources(documents, "Role", name)
        assert "mutatingwebhookconfigurations" not in resources(documents, "ClusterRole", name)
        certificate = pick(documents, "Certificate", name)["spec"]
        assert certificate["dnsNames"][0] == f"{name}.kube-system.svc"
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            annotations = pick(documents, kind, name)["metadata"]["annotations"]
            assert annotations == {"cert-manager.io/inject-ca-from": f"kube-system/{name}"}
        spec = pod_spec(pick(documents, "Deployment", name))
        (volume,) = spec["volumes"]
        assert volume["secret"]["secretName"] == certificate["secretName"]
        # With ca.crt the controller would want to tell the API server itself.
        assert [item["path"] for item in volume["secret"]["items"]] == ["tls.crt", "tls.key"]
        (mount,) = spec["containers"][0]["volumeMounts"]
        assert f"--cert-dir={mount['mountPath']}" in spec["containers"][0]["args"]


@pytest.mark.parametrize("certificates", ["self-managed", "cert-manager"])
def test_the_webhooks_insist_on_client_certificates_if_they_are_to(certificates: str) -> None:
    ours = {"configMap": "apiserver-clients", "key": "bundle.pem"}
    documents = render({"webhooks": {"certificates": certificates, "clientCA": ours}})
    for name in ("coil-ipam-controller", "coil-egress-controller"):
        spec = pod_spec(pick(documents, "Deployment", name))
        [volume] = [each for each in spec["volumes"] if "configMap" in each]
        assert volume["configMap"] == {
            "name": "apiserver-clients",
            "items": [{"key": "bundle.pem", "path": "ca.crt"}],
        }
        container = spec["containers"][0]
        [mount] = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
        assert f"--webhook-client-ca={mount['mountPath']}/ca.crt" in container["args"]
    assert "--webhook-client-ca" not in str(render({"webhooks": {"certificates": certificates}}))


def test_an_issuer_of_the_users_is_used() -> None:
    reference = {"name": "company", "kind": "ClusterIssuer"}
    values: dict[str, object] = {"webhooks": {"certificates": "cert-manager", "certManager": {"issuerRef": reference}}}
    documents = render(values)
    assert names(documents, "Issuer") == set()
    assert pick(documents, "Certificate", "coil-ipam-controller")["spec"]["issuerRef"] == reference


def test_a_network_policy_guards_the_controller_that_it_can_guard() -> None:
    assert names(render(), "NetworkPolicy") == set()
    policy = pick(render(ON_POD_NETWORK), "NetworkPolicy", "coil-egress-controller")
    assert [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]] == [9444, 9396]


def test_every_program_is_monitored() -> None:
    documents = render(EVERYTHING)
    monitored = pick(documents, "ServiceMonitor", "coil")["spec"]["selector"]["matchLabels"]
    found: set[str] = set()
    for service in (document for document in documents if document["kind"] == "Service"):
        if not monitored.items() <= service["metadata"]["labels"].items():
            continue
        (workload,) = (
            each
            for each in documents
            if each["kind"] in ("Deployment", "DaemonSet")
            and service["spec"]["selector"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
        )
        found.add(workload["metadata"]["name"])
    assert found == {
        "coild",
        "coil-ipam-controller",
        "coil-egress-controller",
        "coil-egress-agent-node",
        "coil-raven",
    }
    assert pick(documents, "ServiceMonitor", "coil")["metadata"]["labels"]["release"] == "prometheus"


def alerts(documents: list[Document]) -> list[dict[str, Any]]:
    (group,) = pick(documents, "PrometheusRule", "coil")["spec"]["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_the_alerts_are_those_of_the_documentation() -> None:
    text = (CHART / "alerts.yaml").read_text()
    assert re.findall(r"```yaml\n(groups:\n.*?)```", DOCUMENT.read_text(), re.DOTALL) == [text]
    assert alerts(render(EVERYTHING)) == yaml.safe_load(text)["groups"][0]["rules"]


def test_nothing_is_missed_that_is_not_installed() -> None:
    everything = {alert["alert"] for alert in alerts(render(EVERYTHING))}
    found = {alert["alert"] for alert in alerts(render({"metrics": METRICS}, "egress-only"))}
    assert everything - found == {"CoilNoLeader"}


def test_dashboards_come_as_they_are_in_the_chart() -> None:
    documents = render(EVERYTHING)
    for path in (CHART / "dashboards").glob("*.json"):
        data = pick(documents, "ConfigMap", f"{path.stem}-dashboard")["data"]
        assert data == {path.name: path.read_text()}
