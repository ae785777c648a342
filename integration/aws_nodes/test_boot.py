"""A node is rebooted: kubelet, containerd and coild end without a word, and no link, rule or table of Coil's is left.

Its disk stays: the journal of its interfaces, what the kubelet and containerd keep, the plugin. The kubelet starts its
pods again in new sandboxes, and these get addresses that nobody had a moment ago. This module is the first: what others
have freed just before it would cool down for as long as it does here.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from coil.kernel.family import IPAddress
from integration.aws.talk import ask
from integration.aws.vpc_plan import INTERNET, OUTSIDE
from integration.aws_nodes.node_pod import NodePod
from integration.aws_nodes.workload import Workload, run_workload
from integration.aws_nodes.world import AwsNodes
from integration.cluster.node import Node
from integration.demo.reach import TRY_FETCH, find_gaps
from integration.demo.workload import server_container
from integration.patience import wait_until

pytestmark = pytest.mark.cluster

PODS = 3
"""Of each node, and one more that is deleted: with those that come back, seven of a node's nine addresses."""
BOOT_SECONDS = 180


@pytest.fixture(scope="module")
def workload(aws: AwsNodes) -> Iterator[Workload]:
    """Whatever was given before, in this module no address is given twice."""
    aws.release.upgrade({"coild.cooling": "1h"})
    aws.release.wait_rolled_out()
    try:
        with run_workload(aws, "reboot", replicas=PODS * len(aws.nodes)) as workload:
            yield workload
    finally:
        aws.release.upgrade({})
        aws.release.wait_rolled_out()


@pytest.mark.parametrize(("index", "silent"), [(0, True), (1, False)], ids=["nobody-answers", "all-answer"])
def test_pods_come_back_with_addresses_that_nobody_had(
    aws: AwsNodes, workload: Workload, *, index: int, silent: bool
) -> None:
    """If nobody answers, the API server comes back first: without it, no kubelet has a pod."""
    node = aws.nodes[index]
    others = {pod.name: pod.address for pod in workload.pods() if pod.node is not node}
    gone = {pod.address for pod in pods_of(workload, node)}
    gone.add(delete_one_more(workload, node).address)
    wait_until(lambda: free_addresses(node) >= PODS, what="the node has addresses for all to come back")
    before = addresses_of(aws, node)
    with ExitStack() as silence:
        if silent:
            silence.enter_context(aws.ec2_away())
            silence.enter_context(aws.metadata_away())
            with aws.api_server_away():
                aws.reboot(node)
                assert aws.kernel(node).pod_links() == {}
        else:
            aws.reboot(node)
        wait_until(lambda: are_back(workload, node), what="the node's pods run again", timeout=BOOT_SECONDS)

        after = workload.pods()
        back = {pod.address for pod in after if pod.node is node}
        assert len(back) == PODS
        assert back <= before - gone, "an address that cooled down before the reboot, or that the node does not have"
        assert {pod.name: pod.address for pod in after if pod.node is not node} == others
        assert len(aws.kernel(node).pod_links()) == PODS
        assert find_gaps(aws.plane, aws.nodes, [pod.row for pod in after]) == []
        for pod in after:
            assert ask(pod.host, aws.endpoint.host, aws.endpoint.primary) == str(pod.address)
            assert ask(pod.host, aws.vpc.internet, OUTSIDE[INTERNET]) == str(pod.instance.primary)
    aws.cluster.wait_ready()
    assert addresses_of(aws, node) >= before, "EC2 was asked to take an address"


def addresses_of(aws: AwsNodes, node: Node) -> set[IPAddress]:
    """The addresses for pods that the node has in EC2."""
    return {address for each in aws.instances[node.name].interfaces for address in each.addresses[1:]}


def free_addresses(node: Node) -> int:
    """How many more pods could get one at once, as the node's coild says."""
    page = json.loads(node.run([*TRY_FETCH, "http://127.0.0.1:6666/ip-manager"]))
    return int(page["addresses"]["free"])


def delete_one_more(workload: Workload, node: Node) -> NodePod:
    """A pod that was there for a moment: its address already cools down when the node goes down."""
    name = f"gone-from-{node.name}"
    spec = {"nodeName": node.name, "containers": [server_container()], "terminationGracePeriodSeconds": 0}
    workload.run({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    [pod] = [pod for pod in workload.pods() if pod.name == name]
    workload.kubectl("delete", "pod", pod.name)
    return pod


def pods_of(workload: Workload, node: Node) -> list[NodePod]:
    return [pod for pod in workload.pods() if pod.node is node]


def are_back(workload: Workload, node: Node) -> bool:
    """Whether each pod of the node has been started again, and answers its kubelet."""
    statuses = [pod.document["status"] for pod in pods_of(workload, node)]
    return len(statuses) == PODS and all(
        status["containerStatuses"][0]["restartCount"] and status["containerStatuses"][0]["ready"]
        for status in statuses
    )
