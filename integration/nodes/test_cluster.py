"""The cluster itself, under Debian's ptp plugin: real pods on two nodes, routes between them, and nothing left of it.

It has clusters of its own, for the shared one runs Coil.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from integration.cluster.cluster import Cluster
from integration.cluster.control_plane import KubectlError, find_kubectl
from integration.cluster.image import BUSYBOX_IMAGE
from integration.cluster.node import Node, NodeCommandError
from integration.cluster.survey import survey_clusters
from integration.cluster.trace import Footprint
from integration.demo.reach import FETCH, TRY_FETCH
from integration.nodes.other_plugin import install_plugin, subnets
from integration.patience import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]
MEMORY_LIMIT = 1.2e9  # bytes, of two nodes with a pod each


def server_pod(name: str, node: Node) -> dict[str, Any]:
    """A pod on ``node`` that serves its own name over HTTP on port 8080."""
    script = f"echo {name} says hello; echo {name} > /tmp/name; exec httpd -f -p 8080 -h /tmp"
    container = {
        "name": "server",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "server"}},
        "spec": {
            "nodeName": node.name,
            "dnsPolicy": "Default",
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


def run_pods(cluster: Cluster) -> None:
    """One server pod for each node, running."""
    for number, node in enumerate(cluster.nodes, start=1):
        install_plugin(node, number, "ptp")
    cluster.wait_ready()
    pods = [server_pod(f"pod-{number}", node) for number, node in enumerate(cluster.nodes, start=1)]
    wait_until(partial(_applied, cluster, {"apiVersion": "v1", "kind": "List", "items": pods}), what="pods are taken")
    cluster.plane.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s")


def _applied(cluster: Cluster, document: dict[str, Any]) -> bool:
    try:
        cluster.plane.kubectl("apply", "--filename=-", stdin=json.dumps(document))
    except KubectlError as error:
        # A controller makes the default service account and its token some time after the start.
        if "service account" not in str(error):
            raise
        return False
    return True


def url(address: str, port: int = 8080) -> str:
    """The URL of the name that a server pod serves."""
    return f"http://{f'[{address}]' if ip_address(address).version == 6 else address}:{port}/name"


@pytest.fixture(scope="module")
def ptp_cluster() -> Iterator[Cluster]:
    with Cluster.up(nodes=2) as running:
        for number, node in enumerate(running.nodes, start=1):
            for family, subnet in zip(("-4", "-6"), subnets(number), strict=True):
                # What coild does for its blocks.
                node.run(["ip", family, "route", "add", subnet, "dev", "lo", "table", "119", "protocol", "30"])
        run_pods(running)
        yield running


def pod_addresses(cluster: Cluster, name: str) -> list[str]:
    pod = json.loads(cluster.plane.kubectl("get", "pod", name, "--output=json"))
    return [entry["ip"] for entry in pod["status"]["podIPs"]]


def test_pods_have_both_families_and_kubectl_reaches_them(ptp_cluster: Cluster) -> None:
    for number in (1, 2):
        assert [ip_address(address).version for address in pod_addresses(ptp_cluster, f"pod-{number}")] == [4, 6]
        assert ptp_cluster.plane.kubectl("logs", f"pod-{number}") == f"pod-{number} says hello\n"
        hostname = ptp_cluster.plane.kubectl("exec", f"pod-{number}", "--", "hostname")
        assert hostname == f"pod-{number}\n"


def test_pods_reach_each_other_across_nodes_over_announced_routes(ptp_cluster: Cluster) -> None:
    for address in pod_addresses(ptp_cluster, "pod-2"):
        fetched = ptp_cluster.plane.kubectl("exec", "pod-1", "--", *FETCH, url(address))
        assert fetched == "pod-2\n"


def test_services_are_reached_in_both_families(ptp_cluster: Cluster) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server"},
        "spec": {
            "selector": {"app": "server"},
            "ports": [{"port": 80, "targetPort": 8080}],
            "ipFamilyPolicy": "RequireDualStack",
        },
    }
    ptp_cluster.plane.kubectl("create", "--filename=-", stdin=json.dumps(service))
    addresses = json.loads(ptp_cluster.plane.kubectl("get", "service", "server", "--output=json"))["spec"]["clusterIPs"]
    assert [ip_address(address).version for address in addresses] == [4, 6]
    for address in addresses:
        wait_until(partial(_answers, ptp_cluster.nodes[0], url(address, 80)), what=f"service {address}")


def _answers(node: Node, wanted: str) -> bool:
    try:
        return node.run([*TRY_FETCH, wanted]).startswith("pod-")
    except NodeCommandError:
        return False


@pytest.mark.parametrize(("family", "subnet"), [("-4", "10.98.0.0/27"), ("-6", "fd98::/123")])
def test_an_exported_block_is_announced_and_withdrawn(ptp_cluster: Cluster, family: str, subnet: str) -> None:
    exporter, other = ptp_cluster.nodes

    def learned() -> list[dict[str, Any]]:
        routes: list[dict[str, Any]] = json.loads(other.run(["ip", "-json", family, "route", "show", subnet]))
        return routes

    route = [subnet, "dev", "lo", "table", "119", "protocol", "30"]
    exporter.run(["ip", family, "route", "add", *route])
    wait_until(lambda: bool(learned()), what="the route is announced")
    [route_there] = learned()
    assert route_there["gateway"] == str(exporter.ipv4 if family == "-4" else exporter.ipv6)
    # On its own node the block stays out of the main table.
    assert exporter.run(["ip", family, "route", "show", subnet]).strip() == ""

    exporter.run(["ip", family, "route", "delete", *route])
    wait_until(lambda: not learned(), what="the route is withdrawn")


def test_an_administrator_can_name_a_nodes_namespace(ptp_cluster: Cluster) -> None:
    [node, _] = ptp_cluster.nodes
    name = f"coil-{ptp_cluster.workspace.id}-{node.name}"
    listed = subprocess.run(
        ["ip", "-json", "-n", name, "address", "show", "eth0"], check=True, capture_output=True, text=True, timeout=60
    )
    addresses = {entry["local"] for link in json.loads(listed.stdout) for entry in link.get("addr_info", [])}
    assert {str(node.ipv4), str(node.ipv6)} <= addresses


def test_a_spawned_program_is_on_its_node_and_its_pid_is_its_own(ptp_cluster: Cluster) -> None:
    [node, _] = ptp_cluster.nodes
    process = node.spawn("sleeper", ["busybox", "sleep", "600"], env={"FLAVOUR": "sour"})
    try:
        wait_until(lambda: Path(f"/proc/{process.pid}/exe").readlink().name == "busybox", what="it has started")
        assert Path(f"/proc/{process.pid}/ns/net").stat().st_ino == node.netns.stat().st_ino
        assert b"FLAVOUR=sour" in Path(f"/proc/{process.pid}/environ").read_bytes()
    finally:
        process.kill()
        assert process.wait(10) == -9


def test_what_a_node_has_in_run_is_in_its_run_dir_and_in_no_other(ptp_cluster: Cluster) -> None:
    node, other = ptp_cluster.nodes
    node.run(["busybox", "touch", "/run/mine"])
    assert (node.run_dir / "mine").exists()
    assert not (other.run_dir / "mine").exists()
    assert not Path("/run/mine").exists()


def test_kubelets_do_not_meet_where_they_serve_device_plugins(ptp_cluster: Cluster) -> None:
    """The path is built in. A kubelet deletes what it finds there, and ends if another one was faster."""
    find_socket = ["busybox", "stat", "-c", "%d %i", "/var/lib/kubelet/device-plugins/kubelet.sock"]
    one, other = (node.run(find_socket) for node in ptp_cluster.nodes)
    assert one != other


def test_a_failing_or_endless_command_says_so(ptp_cluster: Cluster) -> None:
    [node, _] = ptp_cluster.nodes
    with pytest.raises(NodeCommandError, match=r"exit code 1: .*no-such-link"):
        node.run(["ip", "link", "show", "no-such-link"])
    with pytest.raises(NodeCommandError, match="not done after 1 s"):
        node.run(["busybox", "sleep", "60"], timeout=1)


def test_the_machines_own_kernel_settings_are_left_alone(ptp_cluster: Cluster) -> None:
    """The kubelet wants 1 and finds it, on its node only."""
    setting = Path("/proc/sys/vm/overcommit_memory")
    assert ptp_cluster.nodes[0].run(["cat", str(setting)]).strip() == "1"
    assert setting.stat().st_dev == Path("/proc/version").stat().st_dev


def test_two_nodes_fit_into_the_memory_that_was_promised(ptp_cluster: Cluster) -> None:
    [survey] = [survey for survey in survey_clusters() if survey.cluster == ptp_cluster.workspace.id]
    print(f"two nodes with a pod each: {survey.memory / 1e6:.0f} MB resident in {survey.processes} processes")
    assert survey.memory < MEMORY_LIMIT


def test_an_owner_killed_by_sigkill_leaves_no_trace() -> None:
    program = (
        "import time; from integration.cluster.cluster import Cluster; "
        "from integration.nodes.test_cluster import run_pods; cluster = Cluster.up(nodes=1); run_pods(cluster); "
        "print(cluster.workspace.folder, flush=True); time.sleep(600)"
    )
    argv = ["setpriv", "--pdeathsig=KILL", sys.executable, "-c", program]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        footprint = Footprint.take(folder.name)
        assert len(footprint.namespaces) == 4, "the fabric, the control plane, the node and a pod"
        assert footprint.cgroups, "the pod's"
        owner.kill()
    wait_until(lambda: not folder.exists(), what="the guardian cleans up")
    # The kernel lets go of a namespace in its own time.
    wait_until(lambda: footprint.remains() == [], what="nothing remains")


def test_taking_a_cluster_down_under_running_pods_leaves_nothing() -> None:
    with Cluster.up(nodes=1) as running:
        run_pods(running)
        footprint = Footprint.take(running.workspace.id)
        assert footprint.cgroups, "the pod's"
    assert not running.workspace.folder.exists()
    wait_until(lambda: footprint.remains() == [], what="nothing remains")


def test_the_command_leaves_a_cluster_running_and_takes_it_down() -> None:
    def command(*arguments: str) -> str:
        argv = [sys.executable, "-m", "integration.cluster", *arguments]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=180, cwd=REPOSITORY)
        return done.stdout

    said = command("up", "--nodes", "1")
    cluster = said.split()[said.split().index("cluster") + 1]
    try:
        assert f"cluster {cluster}: up" in command("status")
        kubectl = [find_kubectl(), "get", "nodes", f"--kubeconfig={said.rpartition('export KUBECONFIG=')[2].strip()}"]
        assert "node-1" in subprocess.run(kubectl, check=True, capture_output=True, text=True, timeout=60).stdout
        footprint = Footprint.take(cluster)
    finally:
        assert f"cluster {cluster} is down" in command("down", cluster)
    assert cluster not in command("status")
    wait_until(lambda: footprint.remains() == [], what="nothing remains")
