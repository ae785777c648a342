"""What others change in EC2 under running pods: noticed, followed, told, and never made worse."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import pytest

from integration.aws import administrator
from integration.aws.node import NAMESPACE, EniNode, EniPod
from integration.aws.talk import ask, is_silent
from integration.aws.world import FLAGS, PODS_OF_INTERFACE, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.egress.conversation import Conversation
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

NEW_CIDR: Final = "172.20.0.0/16"
NEW_SUBNET: Final = "172.20.7.0/24"
RESYNC: Final = "--eni-resync-interval=1s"


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[EniWorld]:
    with EniWorld.up(plane) as world:
        world.nodes[0].start_coild(*FLAGS, RESYNC)
        yield world


@pytest.fixture
def node(world: EniWorld) -> EniNode:
    return world.nodes[0]


@pytest.fixture
def pods(node: EniNode) -> Iterator[list[EniPod]]:
    """One on the primary interface, one on another."""
    made = node.pods_on(0, 1)
    yield made[:2]
    for pod in made:
        pod.delete()


def wait_sees(client: EniPod, world: EniWorld, address: str, whom: object) -> None:
    """Return when the endpoint sees what the pod sends to an address of it come from `whom`."""

    def sees() -> bool:
        with suppress(TimeoutError):
            return ask(client.host, world.endpoint.host, address, patience=0.5) == str(whom)
        return False

    wait_until(sees, what=f"{address} sees {whom}")


def events_of(world: EniWorld, pod: EniPod) -> list[dict[str, Any]]:
    """What was said of the pod."""
    found = world.plane.read(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    return [each for each in found if each["involvedObject"]["name"] == pod.sandbox.pod.name]


def test_a_cidr_that_is_added_under_traffic(world: EniWorld, pods: list[EniPod]) -> None:
    """What is under way goes on as it was; the new network is reached by pods' own addresses as soon as it is known."""
    first, pod = pods
    endpoint = world.endpoint
    with (
        Conversation(pod.host, endpoint.host, str(endpoint.primary)) as inside,
        Conversation(pod.host, world.vpc.internet, "203.0.113.10") as outside,
        Conversation(first.host, pod.host, str(pod.address)) as between,
    ):
        administrator.add_cidr(world.ec2, NEW_CIDR)
        subnet = world.ec2.subnet(NEW_SUBNET)
        device = len(endpoint.interfaces)
        made = administrator.attach(world.ec2, endpoint.id, subnet, device=device)
        [interface] = [each for each in endpoint.interfaces if each.id == made]
        address = str(interface.addresses[0])
        endpoint.configure(interface)
        for client in (first, pod):
            wait_sees(client, world, address, client.address)
        assert ask(endpoint.host, pod.host, pod.address, source=address) == address
        for conversation in (inside, outside, between):
            conversation.goes_on()
    assert inside.seen == {str(pod.address)}
    assert outside.seen == {str(pod.node.instance.primary)}
    assert world.spoofed() == []


def test_groups_of_the_primary_interface_are_followed(world: EniWorld, node: EniNode, pods: list[EniPod]) -> None:
    pod, endpoint = pods[1], world.endpoint
    assert ask(endpoint.host, pod.host, pod.address)
    primary, before = node.instance.interfaces[0].id, node.instance.interfaces[0].groups
    closed = administrator.make_group(world.ec2, "closed")
    administrator.set_groups(world.ec2, primary, closed)
    wait_until(lambda: pod.interface.groups == (closed,), what="the pod's interface is in the new group")
    assert is_silent(endpoint.host, pod.host, pod.address)
    administrator.set_groups(world.ec2, primary, *before)
    wait_until(lambda: pod.interface.groups == before, what="the pod's interface is in the old group")
    assert ask(endpoint.host, pod.host, pod.address)


def test_an_address_that_is_taken_from_a_running_pod(world: EniWorld, node: EniNode, pods: list[EniPod]) -> None:
    pod = pods[1]
    address, interface = pod.address, pod.interface.id
    administrator.unassign(world.ec2, interface, str(address))
    wait_until(lambda: events_of(world, pod), what="the pod's Event")
    [event] = events_of(world, pod)
    assert (event["type"], event["reason"]) == ("Warning", "AddressLost")
    assert str(address) in event["message"]
    # Somebody else has it by now, so nobody here gets it.
    made = [node.add_pod() for _ in range(PODS_OF_INTERFACE)]
    assert address not in {each.address for each in made}
    for each in made:
        assert ask(each.host, world.endpoint.host, world.endpoint.primary) == str(each.address)
        each.delete()


@pytest.mark.slow
def test_an_interface_that_is_detached_with_a_pod_on_it(world: EniWorld, node: EniNode, pods: list[EniPod]) -> None:
    pod = pods[1]
    address, interface = pod.address, pod.interface.id
    administrator.detach(world.ec2, interface)
    wait_until(lambda: events_of(world, pod), what="the pod's Event")
    assert [event["reason"] for event in events_of(world, pod)] == ["AddressLost"]
    # The others have not noticed, and the next one gets an address of another interface.
    assert ask(pods[0].host, world.endpoint.host, world.endpoint.primary) == str(pods[0].address)
    with node.pod() as other:
        assert other.address != address
        assert ask(other.host, world.endpoint.host, world.endpoint.primary) == str(other.address)
    assert node.coild.process.poll() is None


def test_an_interface_that_is_deleted_and_that_metadata_still_list(
    world: EniWorld, node: EniNode, pods: list[EniPod]
) -> None:
    """coild asks EC2 by what is attached to the instance: a question by the ids of metadata would fail as a whole."""
    pod = pods[1]
    world.metadata.freeze()
    before = len(world.ec2.calls)
    try:
        administrator.detach(world.ec2, pod.interface.id)
        node.coild.crash()
        node.coild.wait_ready()
        wait_until(lambda: events_of(world, pod), what="the pod's Event")
        assert ask(pods[0].host, world.endpoint.host, world.endpoint.primary) == str(pods[0].address)
        with node.pod() as other:
            assert ask(other.host, world.endpoint.host, world.endpoint.primary) == str(other.address)
        assert node.coild.process.poll() is None
    finally:
        world.metadata.thaw()
    calls = world.ec2.calls[before:]
    assert {call.error for call in calls if call.action == "DescribeNetworkInterfaces"} == {""}


def test_the_node_tells_what_it_has(world: EniWorld, node: EniNode, pods: list[EniPod]) -> None:
    """The page's words are EC2's, pod by pod."""
    text = json.dumps(node.page())
    for pod in pods:
        assert str(pod.address) in text
        assert pod.sandbox.pod.name in text
    for interface in node.instance.interfaces:
        assert interface.id in text
