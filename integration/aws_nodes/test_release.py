"""The programs come and go, addresses are given again, the release ends: pods that talk do not notice. Last of all."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from integration.aws.talk import ask
from integration.aws.vpc_plan import INTERNET, OUTSIDE
from integration.aws_nodes.node_pod import NodePod
from integration.aws_nodes.workload import Workload, run_workload
from integration.aws_nodes.world import PODS_OF_NODE, AwsNodes
from integration.demo.reach import find_gaps
from integration.demo.workload import server_container
from integration.helm.release import COILD
from integration.nodes.program_pods import SECONDS, names
from integration.patience import wait_until
from integration.tcp_stream import TcpStream, flow

pytestmark = pytest.mark.cluster

REPLICAS = 14
"""Seven on each node: all three interfaces have one."""


@pytest.fixture(scope="module")
def workload(aws: AwsNodes) -> Iterator[Workload]:
    with run_workload(aws, "release", replicas=REPLICAS) as workload:
        yield workload


def test_no_program_was_refused_a_right_or_met_what_it_was_not_made_for(aws: AwsNodes, workload: Workload) -> None:
    assert aws.programs.complaints("coild", "ipam-controller") == []


def test_pods_do_not_notice_that_coild_is_replaced(aws: AwsNodes, workload: Workload) -> None:
    before = kernels(aws)
    near, far = workload.pods_on(1)
    with across(near, far) as inside, outside(aws, near) as translated:
        replace_coild(aws, lambda: assert_talk(aws, near, far))
        assert_goes_on(inside, translated)
    assert kernels(aws) == before
    assert find_gaps(aws.plane, aws.nodes, [pod.row for pod in workload.pods()]) == []


def test_without_ec2_coild_starts_and_gives_the_addresses_that_the_node_has(aws: AwsNodes, workload: Workload) -> None:
    interfaces, pods = aws.interfaces(), {(pod.name, pod.address) for pod in workload.pods()}
    near, far = workload.pods_on(1)
    with aws.ec2_away():
        asked = aws.ec2.count()
        replace_coild(aws, lambda: assert_talk(aws, near, far))
        workload.start(REPLICAS + 2)
        assert aws.ec2.count() == asked, "EC2 was there"
        found = {(pod.name, pod.address) for pod in workload.pods()}
        assert found > pods
        assert {address for _, address in found} <= aws.assignable()
        assert find_gaps(aws.plane, aws.nodes, [pod.row for pod in workload.pods()]) == []
    assert aws.interfaces() == interfaces


def test_helm_test_has_two_pods_talk(aws: AwsNodes) -> None:
    aws.release.test()


def test_addresses_of_pods_that_are_deleted_are_given_again(aws: AwsNodes, workload: Workload) -> None:
    """Twice as many pods as the instances have addresses for: the second time, each has one that was another's."""
    for _ in range(2):
        workload.stop()
        workload.start(PODS_OF_NODE * len(aws.nodes))
        given = {pod.address for pod in workload.pods()}
        assert len(given) == PODS_OF_NODE * len(aws.nodes)
        assert given == aws.assignable()
    assert find_gaps(aws.plane, aws.nodes, [pod.row for pod in workload.pods()]) == []


def test_a_pod_for_which_no_address_is_left_is_told_so(aws: AwsNodes, workload: Workload) -> None:
    """The node has pods, so it stays Ready for these."""
    node = aws.nodes[0].name
    spec = {"nodeName": node, "containers": [server_container()], "terminationGracePeriodSeconds": 0}
    workload.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "beyond"}, "spec": spec})
    try:
        wait_until(lambda: is_told(workload, "beyond"), what="an Event about the address that is missing")
        wait_until(lambda: condition(aws, node, "CoilAddressesAvailable") == "False", what="the node's condition")
        assert condition(aws, node, "Ready") == "True"
    finally:
        workload.kubectl("delete", "pod", "beyond")


def condition(aws: AwsNodes, node: str, kind: str) -> str:
    """The status of the Node's condition of that type."""
    found = aws.read("node", node)["status"]["conditions"]
    return str(next(each["status"] for each in found if each["type"] == kind))


def is_told(workload: Workload, pod: str) -> bool:
    """Whether an Event says that the pod gets no address."""
    chosen = f"--field-selector=reason=NoAddress,involvedObject.name={pod}"
    events = workload.aws.read("events", chosen, f"--namespace={workload.namespace}")["items"]
    return any("no address" in each["message"] for each in events)


def test_running_pods_outlive_the_release(aws: AwsNodes, workload: Workload) -> None:
    before, interfaces = kernels(aws), aws.interfaces()
    near, far = workload.pods_on(1)
    with across(near, far) as inside, outside(aws, near) as translated:
        aws.release.uninstall()
        assert aws.programs.of("coild") == []
        assert_talk(aws, near, far)
        assert_goes_on(inside, translated)
    assert kernels(aws) == before
    assert aws.interfaces() == interfaces
    assert find_gaps(aws.plane, aws.nodes, [pod.row for pod in workload.pods()]) == []
    kinds = "deployments,daemonsets,services,serviceaccounts,configmaps,roles,rolebindings"
    left = json.loads(aws.programs.kubectl("get", kinds, "--output=json"))["items"]
    kinds = "clusterroles,clusterrolebindings,validatingwebhookconfigurations"
    kinds += ",validatingadmissionpolicies,validatingadmissionpolicybindings"
    left += aws.read(kinds)["items"]
    assert [item["metadata"]["name"] for item in left if item["metadata"]["name"].startswith("coil")] == []


def across(client: NodePod, server: NodePod) -> AbstractContextManager[TcpStream]:
    return flow(str(client.host.netns), str(server.host.netns), str(server.address))


def outside(aws: AwsNodes, client: NodePod) -> AbstractContextManager[TcpStream]:
    return flow(str(client.host.netns), str(aws.vpc.internet.netns), str(OUTSIDE[INTERNET]))


def replace_coild(aws: AwsNodes, meanwhile: Callable[[], None]) -> None:
    """Delete its pods; return when others are ready. Until then `meanwhile` is called again and again."""
    former = names(aws.programs.of("coild"))
    aws.programs.kubectl("delete", "pod", *former, "--wait=false")

    def are_ready() -> bool:
        meanwhile()
        pods = [pod for pod in aws.programs.of("coild") if pod["metadata"]["name"] not in former]
        return len(pods) == len(aws.nodes) and all(map(is_ready, pods))

    wait_until(are_ready, what="other pods of coild are ready", timeout=SECONDS)
    aws.release.wait_rolled_out(COILD)


def is_ready(pod: dict[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))


def assert_talk(aws: AwsNodes, near: NodePod, far: NodePod) -> None:
    """Single packets, of which none may be lost. Raises TimeoutError."""
    assert ask(near.host, far.host, far.address) == str(near.address)
    assert ask(near.host, aws.vpc.internet, OUTSIDE[INTERNET]) == str(near.instance.primary)


def assert_goes_on(*streams: TcpStream) -> None:
    """Connections that were there before are used on."""
    for stream in streams:
        count = stream.count()
        wait_until(lambda stream=stream, count=count: stream.count() > count, what="the connection goes on")  # type: ignore[misc]


def kernels(aws: AwsNodes) -> list[Any]:
    """Of each node: links of pods, IPv4 addresses, rules and routes."""
    found = []
    for node in aws.nodes:
        kernel = aws.kernel(node)
        addresses = sorted(kernel.global_addresses())
        rules, routes = kernel.ip("rule", "show"), kernel.ip("-4", "route", "show", "table", "all")
        found.append((kernel.pod_links(), addresses, rules, routes))
    return found
