"""`kubectl coil` against a real API server: run by kubectl itself, with the rights of the ClusterRole coil-viewer."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coil.kube.access import Access
from coil.kube.errors import ForbiddenError
from coil.page.node_dump import NodeDump
from integration.admin_programs import write_admin_programs
from integration.cluster.control_plane import ControlPlane, find_kubectl
from integration.cluster.family import SERVICES_IPV4
from integration.deployment import apply, apply_chart
from integration.helm.chart import NAMESPACE as INSTALLED
from integration.helm.chart import render
from integration.patience import wait_until
from kubectl_coil.cluster import Cluster
from kubectl_coil.ipam.lookup import look_up
from kubectl_coil.ipam.target import parse_target
from kubectl_coil.status.snapshot import read_snapshot
from kubectl_coil.sysdump.collector import KINDS
from kubectl_coil.trace.cluster_view import ClusterView
from kubectl_coil.trace.walk import Walk
from tests.kubectl_coil.memory_nodes import MemoryNodes, node_dump
from tests.kubectl_coil.trace.scene import MARK, nft_map, pod_namespace, route, rule, tunnel_to, with_eip

pytestmark = pytest.mark.apiserver

NAMESPACE = "kubectl-coil"
NODE = "kubectl-coil-node"
VIEWER = "coil-viewer"
NODE_READER = "coil-node-reader"
SERVICE = str(SERVICES_IPV4[7777])
RBAC = "rbac.authorization.k8s.io"

Document = dict[str, Any]


def rules_of(role: str) -> list[Document]:
    """What the chart's ClusterRole grants."""
    [found] = (each for each in render() if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", role))
    rules: list[Document] = found["rules"]
    return rules


RIGHTS = [
    (granted["apiGroups"][0], resource, verb)
    for granted in rules_of(VIEWER)
    for resource in granted["resources"]
    for verb in granted["verbs"]
]


def account_documents(name: str, rules: list[Document]) -> list[Document]:
    """An account that may do what the rules say."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}},
        {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": f"test-{name}"}, "rules": rules},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"test-{name}"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": f"test-{name}"},
            "subjects": [subject],
        },
    ]


def without(group: str, resource: str, verb: str) -> list[Document]:
    """The viewer's rules but for one right."""
    rules = []
    for granted in rules_of(VIEWER):
        for each in granted["resources"]:
            same = (granted["apiGroups"][0], each) == (group, resource)
            if verbs := [other for other in granted["verbs"] if not same or other != verb]:
                rules.append({**granted, "resources": [each], "verbs": verbs})
    return rules


def workload(kind: str, name: str, *, component: str, namespace: str = INSTALLED) -> Document:
    labels = {"app.kubernetes.io/name": "coil", "app.kubernetes.io/component": component}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "coil:9.8.7"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


PROGRAMS = [
    workload("DaemonSet", "coild", component="coild"),
    workload("Deployment", "coil-ipam-controller", component="ipam-controller"),
]

POOL = {
    "apiVersion": "coil.cybozu.com/v2",
    "kind": "AddressPool",
    "metadata": {"name": "kubectl-coil"},
    "spec": {"blockSizeBits": 2, "subnets": [{"ipv4": "10.77.0.0/24"}]},
}


BLOCK = {
    "apiVersion": "coil.cybozu.com/v2",
    "kind": "AddressBlock",
    "metadata": {
        "name": "kubectl-coil-0",
        "labels": {"coil.cybozu.com/pool": "kubectl-coil", "coil.cybozu.com/node": NODE},
    },
    "index": 0,
    "ipv4": "10.77.0.0/30",
}


def pod_document(name: str, *, account: str, namespace: str = NAMESPACE) -> Document:
    labels = {"app.kubernetes.io/name": "coil", "app.kubernetes.io/component": name}
    annotations = {f"egress.coil.cybozu.com/{NAMESPACE}": "nat"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
        "spec": {
            "nodeName": NODE,
            "serviceAccountName": account,
            "automountServiceAccountToken": False,
            "containers": [{"name": name, "image": "coil:9.8.7"}],
        },
    }


def service_document() -> Document:
    """As one of an Egress, of which there is none."""
    spec = {"clusterIP": SERVICE, "ports": [{"port": 5555, "protocol": "UDP"}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "nat", "namespace": NAMESPACE}, "spec": spec}


def set_status(plane: ControlPlane, about: str, status: Document, *, namespace: str) -> None:
    patch = f"--patch={json.dumps(status)}"
    plane.kubectl("patch", about, f"--namespace={namespace}", "--subresource=status", "--type=merge", patch)


@dataclass(frozen=True, slots=True)
class Town:
    """A cluster in which programs of Coil should run, but nobody runs them."""

    plane: ControlPlane
    plugins: Path
    """A folder with kubectl-coil."""

    def account(self, name: str) -> Path:
        return self.plane.kubeconfig_for(name, NAMESPACE)

    def run(self, *arguments: str, kubeconfig: Path) -> subprocess.CompletedProcess[str]:
        """`kubectl coil …`, which kubectl looks for on the PATH."""
        return self.kubectl("coil", *arguments, kubeconfig=kubeconfig)

    def kubectl(self, *arguments: str, kubeconfig: Path) -> subprocess.CompletedProcess[str]:
        """With the folder of plugins on its PATH."""
        environment: Mapping[str, str] = {
            **os.environ,
            "PATH": f"{self.plugins}:{os.environ['PATH']}",
            "KUBECONFIG": str(kubeconfig),
        }
        command = [find_kubectl(), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def town(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    apply_chart(plane)
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    viewer, executor = rules_of(VIEWER), rules_of(NODE_READER)
    documents = [*account_documents("viewer", viewer), *account_documents("nobody", [])]
    documents += account_documents("reader", [*viewer, *executor])
    for verb in ("get", "create"):
        documents += account_documents(f"only-{verb}", [*viewer, {**executor[0], "verbs": [verb]}])
    for number, right in enumerate(RIGHTS):
        documents += account_documents(f"without-{number}", without(*right))
    apply(plane, *documents, POOL, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}, BLOCK)
    apply(plane, pod_document("pod", account="nobody"), service_document(), *PROGRAMS)
    apply(plane, pod_document("coild", account="coild", namespace=INSTALLED))
    # What a tenant could make, to be taken for a program of Coil.
    apply(plane, workload("Deployment", "coil-egress-controller", component="egress-controller", namespace=NAMESPACE))
    status = {
        "status": {"desiredNumberScheduled": 2, "numberReady": 1, "currentNumberScheduled": 2, "numberMisscheduled": 0}
    }
    set_status(plane, "daemonset/coild", status, namespace=INSTALLED)
    set_status(plane, "pod/coild", {"status": {"phase": "Running"}}, namespace=INSTALLED)
    folder = tmp_path_factory.mktemp("plugins")
    write_admin_programs(folder)
    try:
        yield Town(plane, folder)
    finally:
        plane.kubectl("delete", "pod/coild", f"--namespace={INSTALLED}", "--force")
        plane.kubectl("delete", "daemonset/coild", "deployment/coil-ipam-controller", f"--namespace={INSTALLED}")
        plane.kubectl("delete", "addresspool", "kubectl-coil", "--wait=false")
        plane.kubectl("delete", "addressblock", "kubectl-coil-0", "--wait=false")
        plane.kubectl("delete", "node", NODE)
        plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_kubectl_finds_the_plugin_and_a_viewer_sees_all_of_it(town: Town) -> None:
    kubeconfig = town.account("viewer")
    wait_until(lambda: "could not be read" not in town.run("status", kubeconfig=kubeconfig).stdout, what="the role")
    done = town.run("status", "--output=json", kubeconfig=kubeconfig)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] == "degraded"
    told = {(finding["subject"], finding["message"]) for finding in document["findings"]}
    assert ("DaemonSet coild", "1 of 2 pods are not ready") in told
    assert ("Deployment coil-ipam-controller", "no replica leads") in told
    assert ("AddressPool kubectl-coil", "coil-ipam-controller has not judged it") in told
    assert {each["name"]: each["version"] for each in document["components"]} == {
        "coil-ipam-controller": "9.8.7",
        "coild": "9.8.7",
    }
    assert "kubectl-coil" in {each["name"] for each in document["pools"]}
    assert document["egresses"] == document["gateways"] == []


def test_kubectl_completes(town: Town) -> None:
    """As its completion script asks for bash, zsh and fish."""
    done = town.kubectl("__complete", "coil", "trace", "--protocol", "", kubeconfig=town.account("viewer"))
    *found, directive = done.stdout.splitlines()
    assert (done.returncode, directive) == (0, ":4")
    assert {line.partition("\t")[0] for line in found} == {"tcp", "udp", "sctp", "icmp"}


def test_tables_are_for_people_and_yaml_for_programs(town: Town) -> None:
    kubeconfig = town.account("viewer")
    done = town.run("status", kubeconfig=kubeconfig)
    lines = done.stdout.splitlines()
    assert lines[0] == "Coil is degraded"
    assert any(line.split()[:3] == ["coild", "9.8.7", "1/2"] for line in lines)
    assert "\x1b" not in done.stdout, "no colour without a terminal"
    assert town.run("status", "--output=yaml", kubeconfig=kubeconfig).stdout.startswith("at: ")


def test_who_may_see_nothing_is_told_what_to_ask_for(town: Town) -> None:
    done = town.run("status", "--output=json", kubeconfig=town.account("nobody"))
    assert done.returncode == 1
    findings = json.loads(done.stdout)["findings"]
    assert findings
    for finding in findings:
        assert "forbidden" in finding["message"]
        assert "bind the ClusterRole coil-viewer" in finding["remedy"]


def test_who_has_an_address(town: Town) -> None:
    """By a pod's status, as a kubelet writes it."""
    addresses = {"status": {"phase": "Running", "podIP": "10.77.0.1", "podIPs": [{"ip": "10.77.0.1"}]}}
    set_status(town.plane, "pod/pod", addresses, namespace=NAMESPACE)
    kubeconfig = town.account("viewer")
    for target in ("10.77.0.1", f"node/{NODE}", f"pod/{NAMESPACE}/pod"):
        done = town.run("ipam", "show", target, "--output=json", kubeconfig=kubeconfig)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert [(each["name"], each["addresses"], each["block"]) for each in document["pods"]] == [
            ("pod", ["10.77.0.1"], "kubectl-coil-0")
        ]
        assert [each["name"] for each in document["blocks"]] == ["kubectl-coil-0"]
        assert document["ledger"] is None
        [trouble] = document["troubles"]
        assert trouble.endswith(f"ask for the ClusterRole {NODE_READER}")
    lines = town.run("ipam", "show", kubeconfig=kubeconfig).stdout.splitlines()
    assert any(line.split()[:2] == ["kubectl-coil", "10.77.0.0/24"] for line in lines)
    absent = town.run("ipam", "show", "pool/none", kubeconfig=kubeconfig)
    assert (absent.returncode, absent.stdout) == (1, "")
    assert 'addresspools.coil.cybozu.com "none" not found' in absent.stderr


def test_nodes_are_asked_by_who_may_execute_there(town: Town) -> None:
    """Both rights are needed. (There is no kubelet, so the API server itself has no answer.)"""
    for account, refused in (("only-get", True), ("only-create", True), ("reader", False)):
        done = town.run("ipam", "show", f"node/{NODE}", "--output=json", kubeconfig=town.account(account))
        assert done.returncode == 0, done.stderr
        [trouble] = json.loads(done.stdout)["troubles"]
        assert trouble.startswith(f"the node {NODE} ")
        assert (NODE_READER in trouble) == refused, trouble


TARGETS = ("", "pool/kubectl-coil", f"node/{NODE}", f"pod/{NAMESPACE}/pod", "10.77.0.1")


def gated_dump() -> NodeDump:
    """The node's tables lead the pod to a gateway node, so that policies and tunnels are looked at."""
    scene = with_eip(MARK)
    scene.tables["n0"][0] = nft_map("class4", ["10.77.0.1", "1:1"])
    dump = node_dump(namespaces=(pod_namespace("10.77.0.1", peer=20),), tables=scene.tables["n0"])
    return msgspec.structs.replace(dump, node=scene.hosts["n0"])


def tunnelled_dump() -> NodeDump:
    """The pod's way is the tunnel to the Service `nat`, whose routers are looked for."""
    routes = (route("192.0.2.0/24", 254, 9),)
    return node_dump(namespaces=(pod_namespace("10.77.0.1", peer=20, tunnel=tunnel_to(SERVICE), routes=routes),))


def blocked_dump() -> NodeDump:
    """The pod has no way out, so that its Egresses are looked at."""
    routes = (route("0.0.0.0/0", 118, None, kind="unreachable"),)
    return node_dump(namespaces=(pod_namespace("10.77.0.1", peer=20, rules=(rule(2100, 118),), routes=routes),))


async def find_refusals(town: Town, name: str) -> list[str]:
    """What the API server refuses to the account, of all that the commands ask."""
    access = Access.kubeconfig(town.account(name))
    await access.read()
    refusals = []
    async with Cluster.connect(access.config, timeout=30.0) as cluster:
        snapshot = await read_snapshot(cluster)
        for target in TARGETS:
            try:
                await look_up(cluster, MemoryNodes(), parse_target(target, namespace="") if target else None)
            except ForbiddenError as error:
                refusals.append(error.message)
        for resource in KINDS:
            try:
                await cluster.list(resource)
            except ForbiddenError as error:
                refusals.append(error.message)
        for dump in (gated_dump(), tunnelled_dump(), blocked_dump()):
            view = ClusterView(cluster, MemoryNodes({NODE: dump}))
            try:
                pod = await view.pod(NAMESPACE, "pod")
                await Walk(view, pod, ip_address("192.0.2.1"), "tcp", 80).trace()
            except ForbiddenError as error:
                refusals.append(error.message)
    return [*refusals, *(part.error for part in snapshot.parts() if part.error)]


@pytest.mark.parametrize("number", range(len(RIGHTS)), ids=[f"{verb} {kind}.{group}" for group, kind, verb in RIGHTS])
async def test_each_right_of_the_viewer_is_needed(town: Town, number: int) -> None:
    _, resource, verb = RIGHTS[number]
    refusals = await find_refusals(town, f"without-{number}")
    assert refusals
    for refusal in refusals:
        assert f'cannot {verb} resource "{resource}"' in refusal
