"""`coil-migrator check` as a person runs it: on a real API server, with what Coil v2's manifests put there."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from integration.apiserver.without_rules import without_rules
from integration.cluster.control_plane import ControlPlane
from integration.cluster.process import marked_environment
from integration.helm.chart import render

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
        return subprocess.run(
            [sys.executable, "-m", "coil_migrator", "check", f"--kubeconfig={self.plane.admin_kubeconfig}", *arguments],
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
