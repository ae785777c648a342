"""Pods that real kubelets plug into ports of a real Neutron: over two nodes and two namespaces, and gone in the end."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from integration.cluster.control_plane import KubectlError
from integration.demo.inventory import PodRow, read_pods
from integration.demo.reach import TRY_FETCH, compare_answers, render_requests, url
from integration.demo.workload import deployment_document, namespace_document
from integration.deployment import apply
from integration.helm.chart import NAMESPACE
from integration.neutron.port_agent import port_links
from integration.neutron_nodes.world import NeutronNodes
from integration.patience import wait_until

pytestmark = pytest.mark.cluster

READY_SECONDS = 300
REPLICAS = 4
RED, BLUE = "red", "blue"


def pods_of(nodes: NeutronNodes, namespace: str) -> list[dict[str, Any]]:
    return list(nodes.read("pods", f"--namespace={namespace}")["items"])


def rows_of(nodes: NeutronNodes, namespace: str) -> list[PodRow]:
    return read_pods(nodes.read("pods", f"--namespace={namespace}"), [])


@contextmanager
def deployed(nodes: NeutronNodes, *namespaces: str) -> Iterator[None]:
    """Servers in each of the namespaces, Ready by their kubelets' probes; all of it is gone in the end."""
    for namespace in namespaces:
        apply(nodes.plane, namespace_document(namespace))
        apply(nodes.plane, deployment_document("web", namespace=namespace, replicas=REPLICAS))
    try:
        for namespace in namespaces:
            place = f"--namespace={namespace}"
            try:
                nodes.plane.kubectl(
                    *(place, "rollout", "status", "deployment/web", f"--timeout={READY_SECONDS}s"),
                    timeout=READY_SECONDS + 10,
                )
            except KubectlError as error:
                raise AssertionError(f"{error}\n{nodes.plane.kubectl(place, 'get', 'pods,events')}") from error
        yield
    finally:
        nodes.plane.kubectl(
            *("delete", "namespace", *namespaces, f"--timeout={READY_SECONDS}s"), timeout=READY_SECONDS + 10
        )


def answers(nodes: NeutronNodes, client: PodRow, servers: list[PodRow]) -> list[str]:
    """A sentence for each of the servers that the client did not reach by name."""
    place = f"--namespace={client.namespace}"
    printed = nodes.plane.kubectl("exec", place, client.name, "--", "busybox", "sh", "-c", render_requests(servers))
    return compare_answers(f"{client.namespace}/{client.name} on {client.node}", printed, servers)


def is_answered(nodes: NeutronNodes, client: PodRow, address: str) -> bool:
    place = f"--namespace={client.namespace}"
    try:
        nodes.plane.kubectl("exec", place, client.name, "--", *TRY_FETCH, url(address))
    except KubectlError:
        return False
    return True


def test_deployments_over_two_namespaces_and_two_nodes(nodes: NeutronNodes) -> None:
    nodes.wait_idle()
    before = nodes.neutron.snapshot()
    with deployed(nodes, RED, BLUE):
        ports = nodes.ports()
        for namespace in (RED, BLUE):
            pods = pods_of(nodes, namespace)
            assert {pod["spec"]["nodeName"] for pod in pods} == {node.name for node in nodes.cluster.nodes}
            for pod in pods:
                port = ports[pod["metadata"]["uid"]]
                assert (port["status"], port["binding:host_id"]) == ("ACTIVE", pod["spec"]["nodeName"])
                assert {each["ip"] for each in pod["status"]["podIPs"]} == {
                    fixed["ip_address"] for fixed in port["fixed_ips"]
                }
                said = nodes.plane.kubectl(
                    *(f"--namespace={namespace}", "exec", pod["metadata"]["name"], "--"),
                    *("cat", "/sys/class/net/eth0/address"),
                )
                assert said.strip() == port["mac_address"]

        red, blue = rows_of(nodes, RED), rows_of(nodes, BLUE)
        # Within a network, and by the router to the other one.
        assert [gap for client in (*red, *blue) for gap in answers(nodes, client, red + blue)] == []
        for node in nodes.cluster.nodes:
            for address in (str(node.ipv4), str(node.ipv6)):
                assert not is_answered(nodes, red[0], address)

    wait_until(lambda: nodes.neutron.snapshot() == before, what="Neutron is as it was before", timeout=READY_SECONDS)
    for node in nodes.cluster.nodes:
        assert port_links(nodes.kernel(node)) == []


def test_a_pod_keeps_its_conversations_while_coild_and_coil_raven_are_restarted(nodes: NeutronNodes) -> None:
    with deployed(nodes, RED):
        red = rows_of(nodes, RED)
        before = nodes.programs()
        nodes.plane.kubectl(f"--namespace={NAMESPACE}", "delete", "pods", *before)
        for client in red:
            assert answers(nodes, client, red) == []
        nodes.release.wait_rolled_out()
        assert not before & nodes.programs()
        for client in red:
            assert answers(nodes, client, red) == []
        document = json.loads(nodes.plane.kubectl("get", "deployment", "web", f"--namespace={RED}", "--output=json"))
        assert document["status"]["readyReplicas"] == REPLICAS
