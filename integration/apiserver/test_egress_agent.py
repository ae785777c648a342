"""A router pod's agent as a real process, with a real API server and this machine's kernel, in a namespace of its own.

What it does where the kernel has tunnels is tested with the data plane, in `integration/egress`. Here: it starts
wherever it is put, says what is missing, sees its clients and nobody else, and ends when it is asked to.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from http.client import HTTPConnection
from typing import Any

import pytest

from integration.apiserver.bare_node import BareNode
from integration.apiserver.refusal_log import missing_rights
from integration.cluster.control_plane import ControlPlane
from integration.dashboard.documented import COMMON, differences, documented
from integration.dashboard.exposition import parse_exposition
from integration.deployment import apply, egress_agent_command
from integration.patience import wait_until
from integration.service import Service
from integration.vm.feature import missing_features

pytestmark = pytest.mark.apiserver

NAMESPACE = "internet"
APPS = "apps"
NAME = "nat"
ANNOTATION = {f"egress.coil.cybozu.com/{NAMESPACE}": f"other, {NAME}"}
METRICS, HEALTH = 8080, 8081  # the defaults, which the kubelet and Prometheus rely on
DRAIN = 20.0
"""Seconds in which it is to be seen stopping."""

STOP_TIMEOUT = 60.0


class RouterPod:
    """The node's namespace plays the pod: it has an `eth0`, and one address of each family."""

    def __init__(self, node: BareNode) -> None:
        self.node = node
        command = egress_agent_command(node.plane, namespace=NAMESPACE, flags=[f"--drain={DRAIN:g}s"])
        environment = {
            "COIL_POD_NAMESPACE": NAMESPACE,
            "COIL_EGRESS_NAME": NAME,
            "COIL_POD_ADDRESSES": f"{node.ipv4},{node.ipv6}",
        }
        spawn = partial(node.spawn, "coil-egress-agent", command, env=environment)
        self.agent = Service(spawn, ready=self.is_alive)
        self.agent.wait_ready()

    def ask(self, port: int, path: str) -> tuple[int, str]:
        """From outside of the pod, as the kubelet does it."""
        connection = HTTPConnection(str(self.node.ipv4), port, timeout=60)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def is_alive(self) -> bool:
        try:
            return self.ask(HEALTH, "/healthz")[0] == 200
        except OSError:
            return False

    def checks(self) -> dict[str, str]:
        """What `/readyz` says to each condition."""
        checks: dict[str, str] = json.loads(self.ask(HEALTH, "/readyz")[1])["checks"]
        return checks

    def clients(self) -> set[str]:
        """The pods that it tells in its metrics, with their addresses."""
        page = self.ask(METRICS, "/metrics")[1]
        infos = [line for line in page.splitlines() if line.startswith("coil_egress_client_pod_info{")]
        return {"{pod} {pod_ip}".format(**_labels(line)) for line in infos}


def _labels(line: str) -> dict[str, str]:
    inside = line[line.index("{") + 1 : line.index("}")]
    return {name: value.strip('"') for name, value in (part.split("=", 1) for part in inside.split(","))}


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[BareNode]:
    with BareNode.up(plane) as node:
        for namespace, account in ((NAMESPACE, "coil-egress"), (APPS, "default")):
            node.make_namespace(namespace)
            metadata = {"name": account, "namespace": namespace}
            apply(node.plane, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        # What the egress-controller does with the chart's own binding.
        subject = f"--serviceaccount={NAMESPACE}:coil-egress"
        node.plane.kubectl("create", "clusterrolebinding", "router-pods", "--clusterrole=coil-egress", subject)
        apply(node.plane, egress())
        yield node


@pytest.fixture(scope="module")
def router(node: BareNode) -> Iterator[RouterPod]:
    router = RouterPod(node)
    yield router
    assert missing_rights(router.agent.process.log) == []
    router.agent.process.stop()


def egress(*, source_port_auto: bool = False) -> dict[str, Any]:
    return {
        "apiVersion": "coil.cybozu.com/v2",
        "kind": "Egress",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {"destinations": ["0.0.0.0/0"], "fouSourcePortAuto": source_port_auto},
    }


def make_pod(
    node: BareNode, name: str, address: str, *, annotations: Mapping[str, str], phase: str = "Running"
) -> None:
    apply(
        node.plane,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": APPS, "annotations": dict(annotations)},
            "spec": {"containers": [{"name": "main", "image": "none"}], "automountServiceAccountToken": False},
        },
    )
    status = {"phase": phase, "podIP": address, "podIPs": [{"ip": address}]}
    patch_pod(node, name, {"status": status}, "--subresource=status")


def patch_pod(node: BareNode, name: str, patch: Mapping[str, Any], *flags: str) -> None:
    command = ("patch", "pod", name, f"--namespace={APPS}", "--type=merge", f"--patch={json.dumps(patch)}", *flags)
    node.plane.kubectl(*command)


def test_it_is_ready_or_says_what_the_kernel_lacks(router: RouterPod) -> None:
    wait_until(
        lambda: {router.checks()[name] for name in ("process", "pods", "egresses")} == {"ok"},
        what="it has read what it may read",
    )
    if missing_features():
        wait_until(lambda: "modprobe fou" in router.checks()["peers"], what="it says what is missing")
        assert router.checks()["peers"].startswith("the kernel is not set up for tunnels: ")
        assert router.ask(HEALTH, "/readyz")[0] == 503
    else:
        wait_until(lambda: router.ask(HEALTH, "/readyz")[0] == 200, what="it is ready")
    # A restart by the kubelet would cure nothing.
    assert router.ask(HEALTH, "/healthz")[0] == 200
    assert router.agent.process.poll() is None


def test_it_sees_its_clients_and_nobody_else(router: RouterPod, node: BareNode) -> None:
    make_pod(node, "client", "10.99.0.1", annotations=ANNOTATION)
    make_pod(node, "stranger", "10.99.0.2", annotations={})
    make_pod(node, "other", "10.99.0.3", annotations={"egress.coil.cybozu.com/internet": "other"})
    make_pod(node, "done", "10.99.0.4", annotations=ANNOTATION, phase="Succeeded")
    make_pod(node, "last", "10.99.0.5", annotations=ANNOTATION)
    wait_until(lambda: "last 10.99.0.5" in router.clients(), what="the last pod is seen")
    assert router.clients() == {"client 10.99.0.1", "last 10.99.0.5"}
    patch_pod(node, "client", {"metadata": {"annotations": dict.fromkeys(ANNOTATION)}})
    patch_pod(node, "stranger", {"metadata": {"annotations": ANNOTATION}})
    wait_until(lambda: router.clients() == {"stranger 10.99.0.2", "last 10.99.0.5"}, what="annotations are followed")
    patch_pod(node, "last", {"status": {"phase": "Failed"}}, "--subresource=status")
    wait_until(lambda: router.clients() == {"stranger 10.99.0.2"}, what="the end of a pod is followed")
    node.plane.kubectl("delete", "pod", "stranger", f"--namespace={APPS}", "--now")
    wait_until(lambda: not router.clients(), what="a deletion is followed")


def test_its_own_egress_is_followed(router: RouterPod, node: BareNode) -> None:
    def changes() -> list[str]:
        return [
            line["source_port"]
            for line in router.agent.process.entries()
            if line["event"] == "the tunnels' source port changes"
        ]

    assert changes() == []
    apply(node.plane, egress(source_port_auto=True))
    wait_until(lambda: changes() == ["auto"], what="the source port is followed")
    apply(node.plane, egress())
    wait_until(lambda: changes() == ["auto", "fixed"], what="the source port is followed back")


def test_it_exports_what_is_documented(router: RouterPod) -> None:
    exported = parse_exposition(router.ask(METRICS, "/metrics")[1])
    # It writes no Events. That all of its own metrics are set is shown where a kernel has tunnels: integration/egress.
    absent = [f"{name} is not exported" for name in documented(COMMON) if name.startswith("event_")]
    assert differences(exported, COMMON, "coil-egress-agent") == sorted(absent)


def test_asked_to_stop_it_is_unready_first_and_then_ends(router: RouterPod) -> None:
    router.agent.process.terminate()
    wait_until(lambda: router.checks()["process"] == "stopping", what="it is not ready any more")
    assert router.ask(HEALTH, "/readyz")[0] == 503
    assert router.agent.process.wait(STOP_TIMEOUT) == 0
    router.agent.start()
    router.agent.wait_ready()
