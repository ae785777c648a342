"""Pods with IPv6 addresses only, of a /80 on their node's primary interface, as kubelets and kube-proxy need them.

Nodes have both families, as EC2's instances do, and the API server is reached by IPv4.
"""

from collections.abc import Iterator
from ipaddress import IPv6Network
from typing import Any

import pytest

from integration.aws.talk import ask
from integration.aws_nodes.node_pod import NodePod
from integration.aws_nodes.workload import NAME, Workload, run_workload
from integration.aws_nodes.world import AwsNodes
from integration.demo.reach import FETCH, TRY_FETCH, find_gaps, url
from integration.demo.workload import PORT
from integration.patience import wait_until

pytestmark = pytest.mark.cluster

REPLICAS = 4
VALUES = {"aws.ipv6": True, "aws.stateDirectory": "/run/coil-state-ipv6"}


@pytest.fixture(scope="module")
def workload(bare: AwsNodes) -> Iterator[Workload]:
    """Ready, so that each pod has answered its kubelet."""
    aws = bare.with_values(VALUES)
    aws.install()
    try:
        with run_workload(aws, "ipv6", replicas=REPLICAS) as workload:
            yield workload
    finally:
        aws.release.uninstall()


def test_an_address_is_of_the_prefix_of_the_primary_interface(workload: Workload) -> None:
    pods = workload.pods()
    assert len({pod.address for pod in pods}) == REPLICAS
    for pod in pods:
        assert pod.device == 0
        [prefix] = [each for each in pod.interface.prefixes if isinstance(each, IPv6Network)]
        assert prefix.prefixlen == 80
        assert pod.address in prefix


def test_pods_and_nodes_reach_every_pod_here_and_across(workload: Workload) -> None:
    assert find_gaps(workload.aws.plane, workload.aws.nodes, [pod.row for pod in workload.pods()]) == []


def test_pods_reach_nodes_and_a_machine_in_the_vpc_by_their_own_addresses(workload: Workload) -> None:
    aws = workload.aws
    for pod in workload.pods():
        for instance in (aws.endpoint, *aws.instances.values()):
            assert ask(pod.host, instance.host, instance.ipv6) == str(pod.address)
        assert ask(aws.endpoint.host, pod.host, pod.address) == str(aws.endpoint.ipv6)


def test_the_kubelets_probes_follow_the_pods(workload: Workload) -> None:
    """Of one pod on each node."""
    aws = workload.aws
    chosen = [next(pod for pod in workload.pods() if pod.node is node) for node in aws.nodes]
    for answers, change in ((False, ("mv", "/www/name", "/www/hidden")), (True, ("mv", "/www/hidden", "/www/name"))):
        for pod in chosen:
            workload.kubectl("exec", pod.name, "--", *change)
        wait_until(
            lambda answers=answers: all(is_ready(workload, pod) == answers for pod in chosen),  # type: ignore[misc]
            what=f"the pods are {'ready again' if answers else 'not ready'}",
        )


def test_a_service_leads_nodes_and_pods_to_pods_of_both_nodes(workload: Workload) -> None:
    spec = {"selector": {"app": NAME}, "ports": [{"port": PORT}], "ipFamilies": ["IPv6"]}
    workload.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "six"}, "spec": spec})
    address = workload.aws.read("service", "six", f"--namespace={workload.namespace}")["spec"]["clusterIP"]
    servers = {pod.name for pod in workload.pods()}
    heard: dict[str, set[str]] = {node.name: set() for node in workload.aws.nodes}

    def all_answered() -> bool:
        for node in workload.aws.nodes:
            heard[node.name].add(workload.aws.kernel(node).run(*TRY_FETCH, url(address), check=False).strip())
        return all(answered >= servers for answered in heard.values())

    wait_until(all_answered, what="every pod behind the Service answers each node")
    for pod in workload.pods():
        assert workload.kubectl("exec", pod.name, "--", *FETCH, url(address)).strip() in servers


def is_ready(workload: Workload, pod: NodePod) -> bool:
    document: dict[str, Any] = workload.aws.read("pod", pod.name, f"--namespace={workload.namespace}")
    return any(each["type"] == "Ready" and each["status"] == "True" for each in document["status"]["conditions"])
