"""Prefixes in place of single addresses, by the chart's value: a node runs more pods than its interfaces have slots."""

from collections.abc import Iterator
from ipaddress import IPv4Network

import pytest

from integration.aws.talk import ask
from integration.aws.vpc_plan import INTERNET, OUTSIDE
from integration.aws_nodes.workload import Workload, run_workload
from integration.aws_nodes.world import PODS_OF_NODE, AwsNodes
from integration.demo.reach import find_gaps

pytestmark = pytest.mark.cluster

PODS = PODS_OF_NODE + 1
"""Of each node: one more than with single addresses."""
VALUES = {
    "aws.prefixDelegation": True,
    "aws.targets": {"WARM_PREFIX_TARGET": 1},
    "aws.stateDirectory": "/run/coil-state-prefixes",
}


@pytest.fixture(scope="module")
def workload(bare: AwsNodes) -> Iterator[Workload]:
    aws = bare.with_values(VALUES)
    aws.install()
    try:
        with run_workload(aws, "prefixes", replicas=PODS * len(aws.nodes)) as workload:
            yield workload
    finally:
        aws.release.uninstall()


def test_every_pod_has_an_address_of_a_prefix_of_its_node(workload: Workload) -> None:
    pods = workload.pods()
    assert len({pod.address for pod in pods}) == len(pods) == PODS * len(workload.aws.nodes)
    for node in workload.aws.nodes:
        interfaces = workload.aws.instances[node.name].interfaces
        prefixes = [each for interface in interfaces for each in interface.prefixes if isinstance(each, IPv4Network)]
        assert {prefix.prefixlen for prefix in prefixes} == {28}
        own = [pod for pod in pods if pod.node is node]
        assert len(own) == PODS
        assert all(any(pod.address in prefix for prefix in prefixes) for pod in own)
        # One call of EC2's gave sixteen; nothing was assigned one by one.
        assert all(len(interface.addresses) == 1 for interface in interfaces)


def test_pods_and_nodes_reach_every_pod_here_and_across(workload: Workload) -> None:
    aws, pods = workload.aws, workload.pods()
    chosen = [pod for node in aws.nodes for pod in [pod for pod in pods if pod.node is node][:2]]
    assert find_gaps(aws.plane, aws.nodes, [pod.row for pod in chosen]) == []


def test_the_vpc_sees_the_pods_and_the_internet_their_node(workload: Workload) -> None:
    aws = workload.aws
    for pod in workload.pods():
        assert ask(pod.host, aws.endpoint.host, aws.endpoint.primary) == str(pod.address)
        assert ask(aws.endpoint.host, pod.host, pod.address) == str(aws.endpoint.primary)
        assert ask(pod.host, aws.vpc.internet, OUTSIDE[INTERNET]) == str(pod.instance.primary)
