"""`kubectl coil connectivity` on two real nodes: what works passes, what does not is named, and nothing is left."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from integration.cluster.network import Namespaces
from integration.helm.chart import NAMESPACE
from integration.kubectl_plugin import ask_coil
from integration.nodes.coil_cluster import DEFAULT_POOL, CoilCluster
from integration.nodes.eip_gateway import GATEWAY, gateway_document, gateway_nodes
from integration.patience import wait_until

pytestmark = pytest.mark.cluster

INDEX = 91
PORT = 8080
POOLS = {4: "10.110.0.0/16", 6: "fd10:110::/32"}


@pytest.fixture(scope="module")
def ready(coil: CoilCluster) -> Iterator[CoilCluster]:
    """With a default pool, and an EgressGateway on the first node."""
    with coil.room(pool=DEFAULT_POOL), gateway_nodes(coil, coil.nodes[0]):
        coil.release.apply(gateway_document(coil))
        yield coil
        coil.plane.kubectl("delete", "egressgateway", GATEWAY, "--timeout=180s")


@pytest.fixture(scope="module")
def outside(ready: CoilCluster) -> Iterator[list[str]]:
    """A host on the nodes' link that knows the way to pods, and serves; the flags that name it."""
    cluster = ready.cluster
    host = Namespaces.hold(cluster.workspace, "outside")
    addresses = cluster.network.node_addresses(INDEX)
    cluster.network.attach(host, port="outside", addresses=addresses)
    first = ready.nodes[0]
    host.run("ip", "route", "add", POOLS[4], "via", str(first.ipv4))
    host.run("ip", "route", "add", POOLS[6], "via", str(first.ipv6))
    serve = [sys.executable, "-m", "coil_connectivity_probe", "serve", f"--port={PORT}"]
    process = subprocess.Popen([*host.entrance, *serve])
    try:
        yield [f"--outside={f'[{each}]' if each.version == 6 else each}:{PORT}" for each in addresses]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        cluster.network.fabric.run("ip", "link", "delete", "outside")


def lines(document: dict[str, Any]) -> dict[str, set[str]]:
    """The names of checks by their outcome."""
    found: dict[str, set[str]] = {}
    for check in document["checks"]:
        found.setdefault(check["outcome"], set()).add(" ".join(filter(None, (check["name"], check["family"]))))
    return found


def namespaces(coil: CoilCluster) -> list[str]:
    names = coil.plane.kubectl("get", "namespaces", "--output=name").split()
    return [name for name in names if "coil-connectivity-" in name]


@pytest.fixture(scope="module")
def administrator(ready: CoilCluster) -> Iterator[Path]:
    """Whoever has the chart's roles for it and no other right."""
    plane, name = ready.plane, "connectivity-tester"
    account = f"--serviceaccount={NAMESPACE}:{name}"
    plane.kubectl("create", "serviceaccount", name, f"--namespace={NAMESPACE}")
    for role in ("coil-viewer", "coil-node-reader", "coil-connectivity"):
        plane.kubectl("create", "clusterrolebinding", f"test-{role}", f"--clusterrole={role}", account)
    yield plane.kubeconfig_for(name, NAMESPACE)
    plane.kubectl("delete", "clusterrolebinding", "test-coil-viewer", "test-coil-node-reader", "test-coil-connectivity")
    plane.kubectl("delete", "serviceaccount", name, f"--namespace={NAMESPACE}")


def test_all_that_should_work_does(ready: CoilCluster, outside: list[str], administrator: Path) -> None:
    code, document = ask_coil(administrator, "connectivity", *outside)
    failures = [json.dumps(check) for check in document["checks"] if check["outcome"] == "failed"]
    assert "\n".join(failures) == ""
    assert (code, document["leftOver"]) == (0, False)
    assert document["nodes"] == [node.name for node in ready.nodes]
    per_family = {
        *(
            "a pod on its node, TCP",
            "a pod on its node, UDP",
            "a pod on another node, TCP",
            "a pod on another node, UDP",
        ),
        *("a pod on its node refuses where nobody listens", "a pod on another node refuses where nobody listens"),
        *("its node: its kubelet", "another node: its kubelet", "a host port", "a Service, TCP", "a Service, UDP"),
        *("outside", f"outside by EgressGateway {GATEWAY}"),
    }
    found = lines(document)
    assert found["passed"] == {f"{name} IPv{version}" for name in per_family for version in (4, 6)} | {
        "the API server's Service IPv4"
    }
    assert found["skipped"] == {"names of Services"}
    seen = {each["detail"] for each in document["checks"] if each["name"].startswith("outside by")}
    network = ready.cluster.network
    assert seen == {f"seen as {network.ipv4[200]}", f"seen as {network.ipv6[200]}"}
    assert namespaces(ready) == []


@contextmanager
def cut_off(coil: CoilCluster) -> Iterator[None]:
    """No packet of a pod passes between the nodes."""
    kernel = coil.kernel(coil.nodes[1])
    kernel.run("nft", "add table inet cut { chain c { type filter hook forward priority 0; iifname eth0 drop; }; }")
    try:
        yield
    finally:
        kernel.run("nft", "delete table inet cut")


def test_what_does_not_work_is_named(ready: CoilCluster) -> None:
    with cut_off(ready):
        command = [sys.executable, "-m", "kubectl_coil", "connectivity", "--output=junit"]
        command += [f"--node={node.name}" for node in ready.nodes]
        done = subprocess.run(
            [*command, f"--kubeconfig={ready.plane.admin_kubeconfig}"],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 1, done.stderr
    suite = fromstring(done.stdout.partition("\n")[2])  # noqa: S314 - our own
    failed = {case.attrib["name"].partition(" IPv")[0] for case in suite if case.find("failure") is not None}
    assert {"a pod on another node, TCP", "a pod on another node, UDP"} <= failed
    assert not {"a pod on its node, TCP", "its node: its kubelet", "another node: its kubelet"} & failed
    assert int(suite.attrib["failures"]) == sum(case.find("failure") is not None for case in suite)


INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from kubectl_coil.main import main
sys.exit(main())
"""
"""Whoever runs tests in the background has SIGINT ignored, and programs inherit that."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_cleans_up_when_it_is_interrupted(ready: CoilCluster, number: signal.Signals) -> None:
    arguments = ["connectivity", f"--kubeconfig={ready.plane.admin_kubeconfig}"]
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTIBLE, *arguments], stdout=subprocess.DEVNULL)
    wait_until(lambda: namespaces(ready) != [], what="the namespace is there")
    time.sleep(1.0)
    process.send_signal(number)
    assert process.wait(300) == 128 + number
    assert namespaces(ready) == []


def test_a_node_that_is_not_there(ready: CoilCluster) -> None:
    command = [sys.executable, "-m", "kubectl_coil", "connectivity", "--node=nobody"]
    done = subprocess.run(
        [*command, f"--kubeconfig={ready.plane.admin_kubeconfig}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no node nobody" in done.stderr
    assert namespaces(ready) == []
