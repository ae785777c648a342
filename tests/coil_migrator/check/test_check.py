"""What a check tells of a cluster that Coil v2 runs: findings, values of the chart, and the exit code."""

import json
from dataclasses import replace
from typing import Any

import pytest

from coil.crd.meta import ObjectMeta
from coil_migrator.check.cluster import Cluster
from coil_migrator.check.finding import Finding, Severity, exit_code, merge_values, render_json, render_text
from coil_migrator.check.programs import Flag, parse_flags
from coil_migrator.check.report import check
from tests.coil_migrator.check.coil_v2 import (
    NETCONF,
    coild,
    egress,
    machine,
    node,
    pod,
    pool,
    service_cidr,
    with_netconf,
    workload,
)

PLAIN = {"cniVersion": "1.0.0", "name": "k8s-pod-network", "plugins": [{"type": "coil"}]}


def told(cluster: Cluster, severity: Severity | None = None) -> list[tuple[str, str]]:
    """Subject and message of the findings of that severity."""
    return [(finding.subject, finding.message) for finding in check(cluster) if severity in (None, finding.severity)]


def of_programs(*findings: Finding) -> dict[str, Any]:
    return merge_values(findings)


def test_an_empty_cluster_has_nothing_to_tell() -> None:
    assert check(Cluster()) == []
    assert exit_code([]) == 0
    assert "Nothing of Coil v2" in render_text([])


def test_the_public_manifests_need_values_for_host_ports_and_metrics_only() -> None:
    cluster = with_netconf(
        Cluster(
            workloads=(
                ("DaemonSet", coild("--zap-stacktrace-level=panic", "--enable-ipam=true", "--enable-egress=true")),
                ("Deployment", workload("coil-ipam-controller", "--zap-stacktrace-level=panic")),
                ("Deployment", workload("coil-egress-controller", "--zap-stacktrace-level=panic")),
            )
        ),
        NETCONF,
    )
    findings = check(cluster)
    assert exit_code(findings) == 3
    assert merge_values(findings) == {
        "cni": {"after": [NETCONF["plugins"][1]], "version": "0.4.0"},
    }
    remedies = [finding.remedy for finding in findings]
    assert "kubectl -n kube-system delete daemonset coild" in remedies
    assert "kubectl -n kube-system delete deployment coil-egress-controller" in remedies


@pytest.mark.parametrize(
    ("program", "flag", "values"),
    [
        ("coild", "--compat-calico", {"coild": {"compatCalico": True}}),
        ("coild", "--enable-ipam=false", {"ipam": {"enabled": False}}),
        ("coild", "--enable-originating-only", {"egress": {"originatingOnly": True}}),
        ("coild", "--egress-port=6000", {"egress": {"port": 6000}}),
        ("coil-egress-controller", "--egress-port=6000", {"egress": {"port": 6000}}),
        ("coild", "--export-table-id=120", {"coild": {"exportTable": 120}}),
        ("coild", "--pod-table-id=0", {"coild": {"extraArgs": ["--pod-table-id=0"]}}),
        ("coild", "--zap-log-level=debug", {"logs": {"level": "debug"}}),
        ("coild", "--zap-devel", {"logs": {"level": "debug", "format": "text"}}),
        ("coil-ipam-controller", "--zap-encoder=json", {"logs": {"format": "json"}}),
        ("coil-ipam-controller", "--gc-interval=10m", {"ipam": {"extraArgs": ["--gc-interval=10m"]}}),
        ("coil-ipam-controller", "--metrics-addr=:9386", {}),
        ("coil-egress-controller", "--gc-interval=10m", {}),
        ("coild", "-v=3", {}),
        ("coild", "--logtostderr", {}),
        ("coil-router", "--update-interval=2m", {"coild": {"extraArgs": ["--route-sync-interval=2m"]}}),
        ("coil-router", "--protocol-id=31", {}),
        ("coil-router", "--protocol-id=40", {"coild": {"extraArgs": ["--route-sync-protocol-id=40"]}}),
        ("coild", "--protocol-id=40", {"coild": {"extraArgs": ["--protocol-id=40"]}}),
        ("coild", "--pod-table-id=255", {"coild": {"extraArgs": ["--pod-table-id=255"]}}),
        ("coild", "--export-table-id=119", {}),
        ("coild", "--backend=nftables", {}),
        ("coild", "--register-from-main", {}),
        ("coil-egress-controller", "--enable-cert-rotation", {}),
        ("coild", "--socket=/run/coild.sock", {}),
    ],
)
def test_flags_are_values_of_the_chart(program: str, flag: str, values: dict[str, Any]) -> None:
    cluster = Cluster(workloads=(("Deployment", workload(program, flag)),))
    wanted = {"routeSync": {"enabled": True}, **values} if program == "coil-router" else values
    assert merge_values(check(cluster)) == wanted


@pytest.mark.parametrize(
    ("flags", "exposed"),
    [((), True), (("--metrics-addr=:9384",), True), (("--metrics-addr=127.0.0.1:9384",), False)],
)
def test_metrics_that_were_reached_from_outside(flags: tuple[str, ...], exposed: bool) -> None:
    findings = check(Cluster(workloads=(("DaemonSet", workload("coild", *flags)),)))
    assert any("its metrics are on every address" in finding.message for finding in findings) is exposed


@pytest.mark.parametrize("flag", ["--egress-port=many", "--unheard-of=1", "--zap-log-level=loud", "--enable-ipam=x"])
def test_a_flag_that_nobody_knows_is_told(flag: str) -> None:
    findings = check(Cluster(workloads=(("DaemonSet", workload("coild", flag)),)))
    assert [finding.message for finding in findings if flag in finding.message] != []
    assert merge_values(findings) == {}


def test_flags_are_read_as_pflag_reads_them() -> None:
    words = ["--egress-port", "6000", "--compat-calico", "--pod-table-id=0", "-v", "3", "stray", "--enable-egress"]
    assert parse_flags(words) == [
        Flag("--egress-port", "6000"),
        Flag("--compat-calico", "true"),
        Flag("--pod-table-id", "0"),
        Flag("-v", "3"),
        Flag("--enable-egress", "true"),
    ]


@pytest.mark.parametrize(
    ("document", "values"),
    [
        (PLAIN, {}),
        ({**PLAIN, "name": "pods"}, {"networkName": "pods"}),
        (
            {**PLAIN, "plugins": [{"type": "ptp"}, {"type": "coil"}, {"type": "bandwidth"}]},
            {"before": [{"type": "ptp"}], "after": [{"type": "bandwidth"}]},
        ),
        (
            {**PLAIN, "cniVersion": "0.3.1", "plugins": [{"type": "ptp"}, {"type": "coil"}]},
            {"before": [{"type": "ptp"}], "version": "0.3.1"},
        ),
    ],
)
def test_the_network_configuration_is_values(document: dict[str, Any], values: dict[str, Any]) -> None:
    cluster = Cluster(workloads=(("DaemonSet", coild(netconf=json.dumps(document))),))
    assert merge_values(check(cluster)).get("cni", {}) == values
    assert (
        merge_values(check(with_netconf(replace(cluster, workloads=(("DaemonSet", coild()),)), document))).get(
            "cni", {}
        )
        == values
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"plugins": 5}', '{"plugins": [5]}'])
def test_a_network_configuration_that_cannot_be_read_must_be_looked_at(text: str) -> None:
    cluster = with_netconf(Cluster(workloads=(("DaemonSet", coild()),)), text)
    assert exit_code(check(cluster)) == 4
    assert exit_code(check(replace(cluster, config_maps={}))) == 4


def test_a_configuration_that_is_a_file_of_the_container() -> None:
    findings = check(Cluster(workloads=(("DaemonSet", coild(netconf=json.dumps(PLAIN), CNI_NETCONF_FILE="/etc/c")),)))
    assert any("which is not read" in finding.message for finding in findings)


def test_a_configuration_of_another_name_is_replaced() -> None:
    cluster = Cluster(workloads=(("DaemonSet", coild(netconf=json.dumps(PLAIN), CNI_CONF_NAME="00-net.conflist")),))
    assert merge_values(check(cluster)) == {"cni": {"confName": "00-net.conflist"}}


def test_names_that_helm_would_not_take_over() -> None:
    chart = {"helm.sh/chart": "coil-0.1.0"}
    named = {
        "ServiceAccount": (
            ObjectMeta(name="coild", namespace="kube-system"),
            ObjectMeta(name="other", namespace="kube-system"),
            ObjectMeta(name="coil-ipam-controller", namespace="kube-system", labels=chart),
        ),
        "ValidatingWebhookConfiguration": (ObjectMeta(name="coilv2-validating-webhook-configuration"),),
    }
    findings = check(Cluster(named=named))
    assert [finding.remedy for finding in findings] == [
        "kubectl -n kube-system delete serviceaccount coild",
        "kubectl delete validatingwebhookconfiguration coilv2-validating-webhook-configuration",
    ]


def test_programs_of_the_chart_are_not_those_of_coil_v2() -> None:
    ours = workload("coild", "--unheard-of")
    labels = {"helm.sh/chart": "coil-0.1.0"}
    ours = type(ours)(metadata=ObjectMeta(name="coild", namespace="kube-system", labels=labels), spec=ours.spec)
    assert check(Cluster(workloads=(("DaemonSet", ours),))) == []


def test_pools() -> None:
    pools = (
        pool("sound", {"ipv4": "10.0.0.0/16", "ipv6": "fd00::/112"}),
        pool("untidy", {"ipv4": "10.1.0.7/16"}),
        pool("mixed", {"ipv4": "10.2.0.0/16"}, {"ipv6": "fd02::/112"}),
        pool("young", {"ipv4": "10.0.255.0/24"}, {"ipv4": "10.3.0.0/24"}, created="2025-01-01T00:00:00Z"),
        pool("younger", {"ipv4": "10.3.0.0/24"}, created="2025-06-01T00:00:00Z"),
        pool("nodes", {"ipv4": "192.168.0.0/24"}, {"ipv4": "10.96.0.0/16"}),
        pool("n" * 64, {"ipv4": "10.9.0.0/24"}),
    )
    nodes = (node("n1", "192.168.0.10"),)
    cluster = Cluster(pools=pools, nodes=nodes, service_cidrs=(service_cidr("10.96.0.0/12"),))
    by_subject: dict[str, list[Finding]] = {}
    for finding in check(cluster):
        by_subject.setdefault(finding.subject.removeprefix("AddressPool "), []).append(finding)
    assert set(by_subject) == {"mixed", "young", "younger", "nodes", "n" * 64}
    assert {name: {finding.severity for finding in found} for name, found in by_subject.items()} == {
        "mixed": {Severity.NOTE},
        "young": {Severity.CHANGES},
        "younger": {Severity.MUST_MEND},
        "nodes": {Severity.MUST_MEND},
        "n" * 64: {Severity.MUST_MEND},
    }
    assert "10.0.255.0/24 overlaps 10.0.0.0/16 of the pool 'sound'" in by_subject["young"][0].message
    assert "192.168.0.10 of the Node n1" in by_subject["nodes"][0].message
    assert "10.96.0.0/12 of the ServiceCIDR kubernetes" in by_subject["nodes"][0].message


def template(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "egress", **container}]}}


def test_egresses() -> None:
    cluster = Cluster(
        egresses=(
            egress("sound"),
            egress("former", template=template(image="registry.example/cybozu/coil:2.15.0", command=["coil-egress"])),
            egress("own", template=template(image="registry.example/mine:1")),
            egress("privileged", template={"spec": {"hostPID": True, "containers": []}}),
            egress("wrong", "10.0.0.0/33"),
        )
    )
    findings = {finding.subject.rpartition("/")[2]: finding for finding in check(cluster)}
    assert {name: finding.severity for name, finding in findings.items()} == {
        "former": Severity.NOTE,
        "own": Severity.MUST_MEND,
        "privileged": Severity.CHANGES,
        "wrong": Severity.MUST_MEND,
    }
    assert findings["privileged"].values == {"egress": {"allowPrivilegedTemplates": True}}
    assert "spec.destinations[0]" in findings["wrong"].message


BLOCKED = "Its traffic would be blocked, and its successor would not start"


def test_pods_that_would_fail_closed() -> None:
    cluster = Cluster(
        egresses=(egress("nat"),),
        pods=(
            pod("fine", internet="nat"),
            *(pod(f"lost{number}", internet="nat, gone") for number in range(5)),
            pod("odd", internet="nat,,"),
            pod("host", host_network=True, internet="gone"),
            pod("done", phase="Succeeded", ports=(80,), internet="gone"),
            pod("web", ports=(80,)),
            pod("proxy", host_network=True, ports=(80,)),
        ),
    )
    assert told(cluster, Severity.MUST_MEND) == [
        (
            "Pods apps/lost0, apps/lost1, apps/lost2 and 2 more",
            f"names the Egress internet/gone, which does not exist. {BLOCKED}",
        ),
        (
            "Pod apps/odd",
            "names an Egress by an annotation that cannot be read (annotation egress.coil.cybozu.com/internet: "
            f"a name is missing in 'nat,,'). {BLOCKED}",
        ),
    ]
    assert [subject for subject, _ in told(cluster, Severity.NOTE)] == ["Pod apps/web"]


def test_nodes() -> None:
    cluster = Cluster(
        machines=(
            machine("good"),
            machine("arm", architecture="arm64"),
            *(machine(f"power{number}", architecture="ppc64le") for number in range(4)),
            machine("old", kernelVersion="4.18.0-553.el8", containerRuntimeVersion="containerd://1.4.13"),
            machine("crio", containerRuntimeVersion="cri-o://1.21.4"),
            machine("odd", kernelVersion="", containerRuntimeVersion="docker://20.10.0"),
        )
    )
    assert [(finding.severity, finding.subject) for finding in check(cluster)] == [
        (Severity.MUST_MEND, "Nodes power0, power1, power2 and 1 more"),
        (Severity.NOTE, "Node old"),
        (Severity.NOTE, "Node old"),
        (Severity.NOTE, "Node crio"),
    ]


CROWD = Cluster(
    workloads=(("DaemonSet", workload("coild", "--compat-calico", "--pod-rule-prio=2222")),),
    pools=(pool("mixed", {"ipv4": "10.2.0.0/16"}, {"ipv6": "fd02::/112"}),),
    pods=(pod("lost", internet="gone"),),
)


def test_the_text_has_the_most_severe_first_and_values_last() -> None:
    lines = render_text(check(CROWD)).splitlines()
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert headings == ["Must be mended first (1)", "Changes (4)", "To know (1)", "Values for the chart:"]
    assert lines[lines.index("Values for the chart:") + 2 :] == [
        "  coild:",
        "    compatCalico: true",
        "    extraArgs:",
        "    - --pod-rule-prio=2222",
    ]
    assert lines[2].startswith("  Pod apps/lost: names the Egress internet/gone")
    assert lines[3].startswith("    create the Egress")


def test_the_document_has_the_same() -> None:
    document = json.loads(render_json(check(CROWD)))
    assert [finding["severity"] for finding in document["findings"]] == [
        "must-mend",
        *["changes"] * 4,
        "note",
    ]
    assert document["values"] == {"coild": {"compatCalico": True, "extraArgs": ["--pod-rule-prio=2222"]}}
    assert exit_code(check(CROWD)) == 4


def test_names_that_others_wrote_do_not_reach_the_terminal_as_they_are() -> None:
    image = "evil\x1b[2J\nMust be mended first (0)"
    text = render_text(check(Cluster(egresses=(egress("own", template=template(image=image)),))))
    assert "\x1b" not in text
    assert text.count("\nMust be mended") == 0


def test_values_are_joined() -> None:
    findings = [
        Finding(severity=Severity.CHANGES, subject="a", message="", values={"coild": {"extraArgs": ["--a"]}}),
        Finding(severity=Severity.CHANGES, subject="b", message="", values={"coild": {"extraArgs": ["--b", "--a"]}}),
        Finding(severity=Severity.CHANGES, subject="c", message="", values={"egress": {"port": 6000}}),
        Finding(severity=Severity.CHANGES, subject="d", message="", values={"egress": {"port": 7000}}),
    ]
    assert merge_values(findings) == {"coild": {"extraArgs": ["--a", "--b"]}, "egress": {"port": 6000}}
