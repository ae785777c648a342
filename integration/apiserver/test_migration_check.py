"""`coil-migrator check` as a person runs it: on a real API server, with what Coil v2's manifests put there, and with
what egressgateway 0.6 has.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import pytest
import yaml

from integration.apiserver.egressgateway_kinds import DEFINITIONS, GROUP
from integration.apiserver.without_rules import without_rules
from integration.cluster.control_plane import ControlPlane
from integration.cluster.process import marked_environment
from integration.helm.chart import CHART, render
from integration.patience import wait_until
from tests.coil_migrator.check.egressgateway_0_6 import API, FEATURE, PROGRAMS, gateway_document, policy_document

pytestmark = pytest.mark.apiserver

Document = dict[str, Any]

SECONDS = 60.0
SYSTEM, APPS, INTERNET = "kube-system", "check-apps", "check-internet"
NETCONF = {
    "cniVersion": "0.4.0",
    "name": "k8s-pod-network",
    "plugins": [
        {"type": "coil", "socket": "/run/coild.sock"},
        {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}},
    ],
}


def program(kind: str, name: str, *flags: str, **spec: Any) -> Document:
    """As the manifests of Coil v2 have it (v2/config/pod in its repository)."""
    labels = {"app.kubernetes.io/component": name}
    container = {"name": name, "image": "example.invalid/cybozu/coil:2.15.0", "command": [name], "args": list(flags)}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": SYSTEM, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], **spec}},
        },
    }


def of(kind: str, name: str, namespace: str = "", api: str = "v1", **more: Any) -> Document:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("metadata", {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **more}


def tenants_own(name: str, *flags: str) -> Document:
    document = program("Deployment", name, *flags)
    document["metadata"]["namespace"] = APPS
    return document


INSTALLER = {
    "name": "coil-installer",
    "image": "example.invalid/cybozu/coil:2.15.0",
    "env": [{"name": "CNI_NETCONF", "valueFrom": {"configMapKeyRef": {"name": "coil-config", "key": "cni_netconf"}}}],
}
OBJECTS = [
    of("Namespace", APPS),
    of("Namespace", INTERNET),
    of("ServiceAccount", "default", APPS),
    of("ConfigMap", "coil-config", SYSTEM, data={"cni_netconf": json.dumps(NETCONF)}),
    program("DaemonSet", "coild", "--zap-stacktrace-level=panic", "--compat-calico", initContainers=[INSTALLER]),
    program("Deployment", "coil-egress-controller", "--egress-port=6000", "--gc-interval=30m"),
    # What a tenant calls so is none of Coil's, and no value for an administrator.
    tenants_own("coild", "--enable-ipam=false"),
    of(
        "AddressPool",
        "check-mixed",
        api="coil.cybozu.com/v2",
        spec={"blockSizeBits": 5, "subnets": [{"ipv4": "10.213.0.0/24"}, {"ipv6": "fdd5::/120"}]},
    ),
    of("Egress", "nat", INTERNET, api="coil.cybozu.com/v2", spec={"destinations": ["0.0.0.0/0"], "replicas": 1}),
    of(
        "Pod",
        "lost",
        APPS,
        metadata={"annotations": {f"egress.coil.cybozu.com/{INTERNET}": "nat,gone"}},
        spec={"containers": [{"name": "c", "image": "example.invalid/c:1"}]},
    ),
]


@dataclass
class Scene:
    plane: ControlPlane

    def check(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.migrator("check", *arguments)

    def migrator(self, command: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "coil_migrator", command, f"--kubeconfig={self.plane.admin_kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env=marked_environment(self.plane.workspace.id),
        )

    def objects(self) -> str:
        """With their resource versions."""
        kinds = "daemonsets,deployments,addresspools,egresses,pods"
        return self.plane.kubectl("get", kinds, "--all-namespaces", "--output=yaml")


@pytest.fixture(scope="module")
def scene(plane: ControlPlane) -> Iterator[Scene]:
    manifests = yaml.safe_dump_all(OBJECTS)
    with without_rules(plane):
        plane.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", stdin=manifests)
    try:
        yield Scene(plane)
    finally:
        plane.kubectl("delete", "--filename=-", "--ignore-not-found", "--wait=false", stdin=manifests)


def test_a_cluster_of_coil_v2(scene: Scene) -> None:
    answer = scene.check("-o", "json")
    assert (answer.stderr, answer.returncode) == ("", 4)
    document = json.loads(answer.stdout)
    found = [(finding["severity"], finding["subject"]) for finding in document["findings"]]
    mended = [finding["message"] for finding in document["findings"] if finding["subject"] == f"Pod {APPS}/lost"]
    assert [message.partition(".")[0] for message in mended] == [
        f"names the Egress {INTERNET}/gone, which does not exist"
    ]
    assert ("changes", f"DaemonSet {SYSTEM}/coild") in found
    assert ("note", "AddressPool check-mixed") in found
    assert document["values"] == {
        "coild": {"compatCalico": True},
        "cni": {"after": [NETCONF["plugins"][1]], "version": "0.4.0"},
        "egress": {"port": 6000},
    }
    chart = {(each["kind"], each["metadata"]["name"]): each for each in render(document["values"])}
    [container] = chart["DaemonSet", "coild"]["spec"]["template"]["spec"]["containers"]
    assert {"--compat-calico=true", "--egress-port=6000"} <= set(container["args"])


def test_the_text_and_what_it_leaves_alone(scene: Scene) -> None:
    before = scene.objects()
    answer = scene.check()
    assert answer.returncode == 4
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("Must be mended first (")
    assert "    kubectl -n kube-system delete daemonset coild" in lines
    assert "Values for the chart:" in lines
    assert scene.objects() == before


def test_no_answer_is_no_verdict(scene: Scene) -> None:
    answer = scene.check("--kubeconfig=/nowhere")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "/nowhere" in answer.stderr
    assert scene.check("-o", "yaml").returncode == 2


SHOP = "check-shop"
TODAY = "203.0.113.6"
POOLS = {"ipv4": ["203.0.113.1-203.0.113.6"], "ipv4DefaultEIP": "203.0.113.4"}
SELECTOR = {"policy": "doing", "selector": {"matchLabels": {"egress": "true"}}}
FINALIZERS = [f"{GROUP}/egresstunnel"]
THEIRS = [
    of("Namespace", SHOP),
    of("ConfigMap", "egressgateway", SYSTEM, data={"conf.yml": FEATURE.replace("port: 7789", "port: 4790")}),
    *PROGRAMS,
    gateway_document("office", ippools=POOLS, nodeSelector=SELECTOR),
    policy_document("web", SHOP),
    policy_document("free", SHOP, egressIP={"allocatorPolicy": "rr"}),
    policy_document("lost", SHOP, egressIP={"allocatorPolicy": "rr"}),
    policy_document("both", SHOP, appliedTo={"podSelector": {"matchLabels": {"a": "b"}}, "podSubnet": ["10.0.0.0/8"]}),
    policy_document("all", destSubnet=["198.51.100.0/24"]),
    of("EgressClusterInfo", "default", api=API, spec={"extraCidr": ["10.99.0.0/16"]}),
    of("EgressTunnel", "node-1", api=API, metadata={"finalizers": FINALIZERS}, spec={}),
    of(
        "EgressEndpointSlice",
        "web-abcde",
        SHOP,
        api=API,
        metadata={"labels": {"spidernet.io/policy-name": "web"}},
        endpoints=[{"ns": SHOP, "pod": "web-1", "ipv4": ["10.0.0.1"], "node": "node-1"}],
    ),
]
# An EgressClusterPolicy has no namespace; that of `lost` was forgotten.
EIPS: list[Document] = [
    {"ipv4": TODAY, "policies": [{"name": "free", "namespace": SHOP}]},
    {"ipv4": "203.0.113.4", "policies": [{"name": "all"}, {"name": "web", "namespace": SHOP}]},
]
STATUSES: dict[tuple[str, ...], Document] = {
    ("egresspolicy", "web", f"--namespace={SHOP}"): {"eip": {"ipv4": "203.0.113.4"}, "node": "node-1"},
    ("egresspolicy", "free", f"--namespace={SHOP}"): {"eip": {"ipv4": TODAY}, "node": "node-1"},
    ("egresspolicy", "lost", f"--namespace={SHOP}"): {"eip": {"ipv4": "203.0.113.5"}, "node": "node-1"},
    ("egressclusterpolicy", "all"): {"eip": {"ipv4": "203.0.113.4"}, "node": "node-1"},
    ("egressgateway", "office"): {"nodeList": [{"name": "node-1", "status": "Ready", "eips": EIPS}]},
}


@pytest.fixture
def former() -> Iterator[Scene]:
    """A cluster of its own, with egressgateway's kinds and objects and nothing of Coil's: kinds cannot be exchanged
    under the feet of others.
    """
    with ControlPlane.start() as plane:
        plane.kubectl("create", "--filename=-", stdin=yaml.safe_dump_all(DEFINITIONS))
        names = {definition["spec"]["names"]["plural"] for definition in DEFINITIONS}
        wait_until(lambda: names <= served(plane), what="the kinds are served")
        plane.kubectl("create", "--filename=-", stdin=yaml.safe_dump_all(THEIRS))
        for words, status in STATUSES.items():
            patch = json.dumps({"status": status})
            plane.kubectl("patch", *words, "--subresource=status", "--type=merge", f"--patch={patch}")
        yield Scene(plane)


def served(plane: ControlPlane) -> set[str]:
    """The kinds of egressgateway's group that can be listed."""
    status, answer = plane.request("GET", f"/apis/{API}")
    found = {resource["name"] for resource in json.loads(answer)["resources"]} if status == HTTPStatus.OK else set()
    kinds = {name for name in found if "/" not in name}
    return {kind for kind in kinds if plane.request("GET", f"/apis/{API}/{kind}")[0] == HTTPStatus.OK}


def test_a_cluster_of_egressgateway(former: Scene) -> None:
    """What the check says to do is done, in the order of docs/upgrade.md."""

    def findings(*severities: str) -> dict[str, list[Document]]:
        found: dict[str, list[Document]] = {}
        answer = former.check("-o", "json")
        assert answer.stderr == ""
        for finding in json.loads(answer.stdout)["findings"]:
            if finding["severity"] in severities:
                found.setdefault(finding["subject"], []).append(finding)
        return found

    def mended() -> set[str]:
        return set(findings("must-mend"))

    kubectl = former.plane.kubectl
    assert mended() == {f"EgressPolicy {SHOP}/both"}
    document = json.loads(former.check("-o", "json").stdout)
    assert document["values"]["eip"] == {
        "enabled": True,
        "egressPolicies": True,
        "tunnelPort": 4790,
        "announcedInterfacesToExclude": ["^cali.*", "br-*"],
        "clusterCIDR": ["10.99.0.0/16"],
    }
    render(document["values"])
    changed = findings("changes")
    assert {"EgressTunnel node-1", f"EgressEndpointSlice {SHOP}/web-abcde"} <= set(changed)
    assert {each for each in changed if "Policy" in each} == {f"EgressPolicy {SHOP}/lost"}

    kinds = "egressgateways,egresspolicies,egressclusterpolicies"
    backup = kubectl("get", kinds, "--all-namespaces", "--output=yaml")
    converted = former.migrator("convert", "--pin", "-f", "-", stdin=backup)
    assert (converted.returncode, converted.stderr) == (0, "")

    for each in PROGRAMS:
        kubectl("delete", each["kind"], each["metadata"]["name"], f"--namespace={SYSTEM}")
    left = {each for each in mended() if not each.startswith("CustomResourceDefinitions")}
    assert left == {f"EgressPolicy {SHOP}/both", "EgressTunnel node-1"}
    kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", stdin=converted.stdout)
    kubectl("patch", "egressgateway", "office", "--type=merge", '--patch={"metadata": {"finalizers": []}}')
    kubectl("patch", "egresstunnel", "node-1", "--type=merge", '--patch={"metadata": {"finalizers": []}}')
    kubectl("delete", "egresstunnels", "--all")
    kubectl("delete", "egressendpointslices", "--all-namespaces", "--selector=spidernet.io/policy-name")
    kubectl("delete", "customresourcedefinition", f"egressclusterendpointslices.{GROUP}")
    kubectl("apply", "--server-side", "--force-conflicts", f"--filename={CHART / 'crds'}")

    assert mended() == set()

    def read_gateway() -> Document:
        found: Document = json.loads(kubectl("get", "egressgateway", "office", "--output=json"))
        return found

    # The API server takes a definition in some time after it has accepted it.
    wait_until(lambda: "failPolicy" in read_gateway()["spec"], what="the chart's schema is served")
    gateway = read_gateway()
    assert gateway["spec"]["ippools"] == POOLS
    assert (gateway["spec"]["failPolicy"], gateway["spec"]["nodeSelector"]["policy"]) == ("Closed", "doing")
    assert gateway["status"]["nodeList"][0]["eips"] == EIPS
    assert "finalizers" not in gateway["metadata"]
    for name, address in (("free", TODAY), ("lost", "203.0.113.5")):
        pinned = json.loads(kubectl("get", "egp", name, f"--namespace={SHOP}", "--output=json"))
        assert pinned["spec"]["egressIP"] == {"allocatorPolicy": "rr", "useNodeIP": False, "ipv4": address}
