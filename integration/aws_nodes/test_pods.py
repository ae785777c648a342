"""Pods that real kubelets run on addresses of interfaces: who reaches whom, as whom, and by which interface."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from integration.aws import administrator
from integration.aws.talk import SILENCE, ask, connects
from integration.aws.vpc import METADATA, Host
from integration.aws.vpc_plan import INTERNET, OUTSIDE
from integration.aws_nodes.workload import Workload, run_workload
from integration.aws_nodes.world import AwsNodes
from integration.cluster.family import ClusterFamilies
from integration.demo.reach import FETCH, TRY_FETCH, find_gaps, url
from integration.demo.workload import PORT
from integration.egress.capture import Capture, Packet
from integration.kernel_state import KernelState
from integration.patience import wait_until

pytestmark = pytest.mark.cluster

REPLICAS = 14
"""Seven on each node: more than two interfaces have addresses for."""
API_SERVER = (str(ClusterFamilies.IPV4_ONLY.apiserver_address), 443)
"""The Service."""


@pytest.fixture(scope="module")
def workload(aws: AwsNodes) -> Iterator[Workload]:
    with run_workload(aws, "pods", replicas=REPLICAS) as workload:
        yield workload


def test_nodes_say_that_pods_can_get_addresses(aws: AwsNodes) -> None:
    for node in aws.read("nodes")["items"]:
        conditions = {each["type"]: each["status"] for each in node["status"]["conditions"]}
        assert (conditions["Ready"], conditions["CoilAddressesAvailable"]) == ("True", "True")
        addresses = {each["type"]: each["address"] for each in node["status"]["addresses"]}
        assert addresses["InternalIP"] == str(aws.instances[node["metadata"]["name"]].primary)


def test_pods_have_addresses_of_several_interfaces_of_their_own_node(aws: AwsNodes, workload: Workload) -> None:
    pods = workload.pods()
    assert len({pod.address for pod in pods}) == REPLICAS
    for node in aws.nodes:
        devices = [pod.device for pod in pods if pod.node is node]
        assert len(devices) == REPLICAS // len(aws.nodes)
        assert set(devices) == {0, 1, 2}


def test_pods_and_nodes_reach_every_pod_here_and_across(aws: AwsNodes, workload: Workload) -> None:
    assert find_gaps(aws.plane, aws.nodes, [pod.row for pod in workload.pods()]) == []


def test_pods_and_a_machine_in_the_vpc_see_each_others_own_addresses(aws: AwsNodes, workload: Workload) -> None:
    for pod in workload.pods():
        assert ask(pod.host, aws.endpoint.host, aws.endpoint.primary) == str(pod.address)
        assert ask(aws.endpoint.host, pod.host, pod.address) == str(aws.endpoint.primary)


def test_the_internet_sees_the_nodes_primary_address(aws: AwsNodes, workload: Workload) -> None:
    for pod in workload.pods():
        assert ask(pod.host, aws.vpc.internet, OUTSIDE[INTERNET]) == str(pod.instance.primary)


def test_pods_reach_the_api_server_by_its_service_and_not_the_metadata_service(
    aws: AwsNodes, workload: Workload
) -> None:
    for pod in (*workload.pods_on(0), *workload.pods_on(1)):
        assert connects(pod.host, *API_SERVER)
        assert not connects(pod.host, str(METADATA), 80, patience=SILENCE)
        assert connects(pod.instance.host, str(METADATA), 80)


@pytest.mark.parametrize("device", [0, 1])
def test_what_a_pod_says_in_the_vpc_goes_by_its_own_interface(aws: AwsNodes, workload: Workload, device: int) -> None:
    client, server = workload.pods_on(device)
    for sender, receiver in ((client, server), (server, client)):
        link = f"eth{device}"
        with Capture(sender.node.netns, link) as own, Capture(sender.node.netns, f"eth{1 - device}") as other:
            assert ask(sender.host, receiver.host, receiver.address) == str(sender.address)
            own.wait_for(partial(is_to, sender.address), what="the answer")
        assert not other.select(partial(is_of, sender.address))


def test_the_api_server_reaches_pods(aws: AwsNodes, workload: Workload) -> None:
    """From outside the VPC, by its proxy and by the kubelets: `exec` and `logs`."""
    for pod in (workload.pods_on(0)[0], workload.pods_on(1)[1]):
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}:{PORT}/proxy/name"
        status, answer = aws.plane.request("GET", path)
        assert (status, answer.decode().strip()) == (200, pod.name)
        printed = workload.kubectl("exec", pod.name, "--", "sh", "-c", "echo heard >/proc/1/fd/1; hostname")
        assert printed == f"{pod.name}\n"
        wait_until(lambda pod=pod: "heard" in workload.kubectl("logs", pod.name), what=f"the log of {pod.name}")  # type: ignore[misc]


def test_a_service_leads_to_pods_of_either_interface(aws: AwsNodes, workload: Workload) -> None:
    """For pods and for nodes."""
    servers = {pod.name: pod for device in (0, 1) for pod in workload.pods_on(device)}
    choose(workload, *servers, service="either")
    workload.create(service_document("either"))
    address = aws.read("service", "either", f"--namespace={workload.namespace}")["spec"]["clusterIP"]
    heard: dict[str, set[str]] = {node.name: set() for node in aws.nodes}

    def all_answered() -> bool:
        for node in aws.nodes:
            heard[node.name].add(aws.kernel(node).run(*TRY_FETCH, url(address), check=False).strip())
        return all(answered >= set(servers) for answered in heard.values())

    wait_until(all_answered, what="every pod behind the Service answers each node")
    for pod in servers.values():
        printed = workload.kubectl("exec", pod.name, "--", *FETCH, url(address))
        assert printed.strip() in servers


def test_a_node_port_leads_to_a_pod_of_another_interface(aws: AwsNodes, workload: Workload) -> None:
    """In and out by the primary interface, with the client's address, whoever asks."""
    pod = workload.pods_on(1)[0]
    choose(workload, pod.name, service="port")
    document = service_document("port")
    document["spec"] |= {"type": "NodePort", "externalTrafficPolicy": "Local"}
    workload.create(document)
    [port] = aws.read("service", "port", f"--namespace={workload.namespace}")["spec"]["ports"]
    administrator.allow(aws.ec2, administrator.default_group(aws.ec2), network=f"{OUTSIDE[INTERNET]}/32")
    target = f"http://{pod.instance.primary}:{port['nodePort']}/name"
    for client, address in ((aws.vpc.internet, OUTSIDE[INTERNET]), (aws.endpoint.host, aws.endpoint.primary)):
        with Capture(pod.node.netns, "eth1") as other, Capture(pod.host.netns) as inside:
            wait_until(partial(answers, client, target, pod.name), what=f"{pod.name} answers at {target}")
            inside.wait_for(partial(is_of, address), what="the client by its own address, as the pod sees it")
        assert not other.select(partial(is_of, address))


def is_to(address: object, packet: Packet) -> bool:
    return packet.destination == str(address)


def is_of(address: object, packet: Packet) -> bool:
    """To or from the address."""
    return str(address) in (packet.source, packet.destination)


def answers(client: Host, target: str, name: str) -> bool:
    """Whether the pod of that name answers the client at the URL."""
    return KernelState(str(client.netns)).run(*TRY_FETCH, target, check=False).strip() == name


def choose(workload: Workload, *pods: str, service: str) -> None:
    workload.kubectl("label", "pods", *pods, f"{service}=chosen")


def service_document(name: str) -> dict[str, Any]:
    """For the pods that were chosen for it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {name: "chosen"}, "ports": [{"port": PORT}]},
    }
