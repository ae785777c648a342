"""Host ports of pods with addresses of interfaces: at the node's primary address, whichever interface has the pod."""

from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from integration.aws_nodes.node_pod import NodePod
from integration.aws_nodes.workload import Workload, open_workload
from integration.aws_nodes.world import AwsNodes
from integration.cluster.node import NodeCommandError
from integration.demo.reach import FETCH, TRY_FETCH
from integration.demo.workload import PORT, server_container
from integration.egress.capture import Capture, Packet
from integration.kernel_state import KernelState

pytestmark = pytest.mark.cluster

PODS = 5
"""Of one node: more than an interface has addresses for."""
FIRST_PORT = 18100


@pytest.fixture(scope="module")
def workload(aws: AwsNodes) -> Iterator[Workload]:
    with open_workload(aws, "host-ports") as workload:
        node = aws.nodes[0].name
        workload.run(*(published(f"published-{number}", FIRST_PORT + number, node=node) for number in range(PODS)))
        yield workload


def published(name: str, port: int, *, node: str) -> dict[str, Any]:
    """A server with a host port."""
    ports = [{"containerPort": PORT, "hostPort": port}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "containers": [{**server_container(), "ports": ports}],
            "terminationGracePeriodSeconds": 0,
        },
    }


def pod_on(workload: Workload, device: int) -> NodePod:
    return next(pod for pod in workload.pods() if pod.device == device)


def url(pod: NodePod) -> str:
    """Its host port at the primary address of its node."""
    [port] = [each["hostPort"] for each in pod.document["spec"]["containers"][0]["ports"]]
    return f"http://{pod.instance.primary}:{port}/name"


def is_of(address: object, packet: Packet) -> bool:
    """To or from the address."""
    return str(address) in (packet.source, packet.destination)


@pytest.mark.parametrize("device", [0, 1])
def test_from_another_node(aws: AwsNodes, workload: Workload, device: int) -> None:
    pod = pod_on(workload, device)
    with Capture(pod.host.netns) as inside:
        assert aws.nodes[1].run([*FETCH, url(pod)]) == f"{pod.name}\n"
        inside.wait_for(partial(is_of, aws.instances["node-2"].primary), what="the client by its own address")


@pytest.mark.parametrize("device", [0, 1])
def test_from_a_machine_in_the_vpc_in_and_out_by_the_primary_interface(
    aws: AwsNodes, workload: Workload, device: int
) -> None:
    pod, client = pod_on(workload, device), aws.endpoint
    with (
        Capture(pod.node.netns, "eth0") as primary,
        Capture(pod.node.netns, "eth1") as other,
        Capture(pod.host.netns) as inside,
    ):
        assert KernelState(str(client.host.netns)).run(*FETCH, url(pod)) == f"{pod.name}\n"
        inside.wait_for(partial(is_of, client.primary), what="the client by its own address, as the pod sees it")
        primary.wait_for(lambda packet: packet.destination == str(client.primary), what="the answer")
    assert not other.select(partial(is_of, client.primary))


@pytest.mark.parametrize("device", [0, 1])
def test_from_the_node_and_its_pods_and_the_pod_itself(aws: AwsNodes, workload: Workload, device: int) -> None:
    pod = pod_on(workload, device)
    assert pod.node.run([*FETCH, url(pod)]) == f"{pod.name}\n"
    for asking in (pod_on(workload, 0), pod_on(workload, 1)):
        assert workload.kubectl("exec", asking.name, "--", *FETCH, url(pod)) == f"{pod.name}\n"


def test_another_node_does_not_answer(aws: AwsNodes, workload: Workload) -> None:
    """Neither to others nor to itself."""
    pod, other = pod_on(workload, 1), aws.instances["node-2"]
    port = urlsplit(url(pod)).port
    client = KernelState(str(aws.endpoint.host.netns))
    assert client.run(*TRY_FETCH, f"http://{other.primary}:{port}/name", check=False) == ""
    with pytest.raises(NodeCommandError):
        aws.nodes[1].run([*TRY_FETCH, f"http://127.0.0.1:{port}/name"])
