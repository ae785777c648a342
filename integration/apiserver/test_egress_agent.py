"""A router pod's agent as a real process, with a real API server and this machine's kernel, in a namespace of its own.

What it does where the kernel has tunnels is tested with the data plane, in `integration/egress`. Here: it starts
wherever it is put, says what is missing, sees its clients and nobody else, and ends when it is asked to.
"""

import json
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from typing import Any

import pytest

from integration.apiserver.bare_node import BareNode
from integration.apiserver.refusal_log import missing_rights
from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.dashboard.documented import COMMON, differences, documented
from integration.dashboard.exposition import parse_exposition
from integration.deployment import apply, bind_router_pods, egress_agent_command
from integration.patience import wait_until
from integration.service import Service
from integration.vm.feature import missing_features

pytestmark = pytest.mark.apiserver

NAMESPACE = "internet"
ACCOUNT = "coil-egress"
NAME = "nat"
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

    def clients(self) -> int:
        """How many it tells of in its metrics."""
        page = self.ask(METRICS, "/metrics")[1]
        [line] = [line for line in page.splitlines() if line.startswith("coil_egress_client_pod_count{")]
        return int(float(line.rpartition(" ")[2]))


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[BareNode]:
    with BareNode.up(plane) as node:
        node.make_namespace(NAMESPACE)
        metadata = {"name": ACCOUNT, "namespace": NAMESPACE}
        apply(node.plane, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        bind_router_pods(node.plane, NAMESPACE)
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


def tell(node: BareNode, name: str, *addresses: str, egress: str = NAME, pods: int = 1) -> None:
    """A node's slice, as its coild writes it."""
    apply(
        node.plane,
        {
            "apiVersion": "coil.cybozu.com/v2",
            "kind": "EgressClientSlice",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"coil.cybozu.com/egress": egress}},
            "nodeName": name,
            "addresses": list(addresses),
            "pods": pods,
        },
    )


def test_it_is_ready_or_says_what_the_kernel_lacks(router: RouterPod) -> None:
    wait_until(
        lambda: {router.checks()[name] for name in ("process", "egressclientslices", "egresses")} == {"ok"},
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
    assert router.clients() == 0
    tell(node, "elsewhere", "10.99.0.9", egress="other")
    tell(node, "n1", "10.99.0.1", "fd99::1")
    wait_until(lambda: router.clients() == 1, what="a client is seen")
    tell(node, "n2", "10.99.0.2", "10.99.0.3", pods=2)
    wait_until(lambda: router.clients() == 3, what="those of another node are seen")
    tell(node, "n1", "10.99.0.1", "10.99.0.4", "fd99::1", pods=2)
    wait_until(lambda: router.clients() == 4, what="one more is seen")
    node.plane.kubectl("delete", "egressclientslice", "n2", f"--namespace={NAMESPACE}")
    wait_until(lambda: router.clients() == 2, what="a deletion is followed")


@pytest.mark.parametrize("resource", ["pods", "secrets", "nodes", "configmaps"])
def test_whoever_has_its_account_reads_no_environment_of_pods(node: BareNode, resource: str) -> None:
    """The account is in a tenant's namespace, where the tenant can run pods of its own with it."""
    kubeconfig = node.plane.kubeconfig_for(ACCOUNT, NAMESPACE)
    for where in ("--all-namespaces", "--namespace=kube-system", f"--namespace={NAMESPACE}"):
        with pytest.raises(KubectlError, match="forbidden"):
            node.plane.kubectl("get", resource, where, kubeconfig=kubeconfig)


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
