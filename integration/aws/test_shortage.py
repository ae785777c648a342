"""What a node leaves to others, and what it reports while it has no address to give: in its Node object, to coild's
readiness probe, and to the runtime."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from coil.crd.node_condition import ADDRESSES_AVAILABLE
from coild.eni.node_condition import AVAILABLE, SHORTAGE
from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError
from integration.aws.ec2_state import read_state
from integration.aws.node import EniNode, EniPod
from integration.aws.talk import ask
from integration.aws.world import FLAGS, PODS_OF_INTERFACE, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

NOT_AVAILABLE: Final = 50
"""The plugin is not available: no ADD would succeed (CNI, "STATUS")."""
ASSIGN: Final = "AssignPrivateIpAddresses"
THROTTLED: Final = "RequestLimitExceeded"


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[EniWorld]:
    with EniWorld.up(plane) as world:
        yield world
        assert world.spoofed() == []


@dataclass(frozen=True, slots=True)
class Notice:
    """What a node reports: the condition of its Node, what coild's readiness lacks, and the answer to STATUS."""

    condition: dict[str, Any]
    unready: dict[str, str]
    status: CniError | None

    @property
    def good(self) -> bool:
        """Whether all of them say that pods may come."""
        return self.condition.get("status") == "True" and not self.unready and self.status is None

    @property
    def bad(self) -> bool:
        """Whether the condition and the probe say that no pod would get an address."""
        return self.condition.get("status") == "False" and "addresses" in self.unready


def hear(world: EniWorld, node: EniNode) -> Notice:
    """At this moment."""
    status: CniError | None = None
    try:
        node.runtime.status()
    except CniError as error:
        status = error
    return Notice(node.conditions().get(ADDRESSES_AVAILABLE, {}), node.unready(), status)


def wait_bad(world: EniWorld, node: EniNode) -> Notice:
    """Return when the node reports that it has no address to give."""
    wait_until(lambda: hear(world, node).bad, what=f"{node.name} says that it has no address")
    return hear(world, node)


def wait_good(world: EniWorld, node: EniNode) -> Notice:
    """Return when pods may come."""
    wait_until(lambda: hear(world, node).good, what=f"{node.name} says that pods can get addresses")
    return hear(world, node)


def addresses_of(node: EniNode) -> int:
    """How many EC2 has assigned to its interfaces for pods."""
    return sum(len(each.addresses) - 1 for each in node.instance.interfaces)


@pytest.mark.slow
def test_a_node_takes_no_more_addresses_than_its_limit_of_pods(world: EniWorld) -> None:
    """The warm interface would have had three for the fourth pod, and be followed by another one."""
    node = world.nodes[0]
    node.report(pods=PODS_OF_INTERFACE + 1)
    with node.running_coild(*FLAGS):
        pods = [node.add_pod() for _ in range(PODS_OF_INTERFACE + 1)]
        assert len({pod.interface.id for pod in pods}) == 2
        assert addresses_of(node) == len(pods)
        assert world.ec2.count("CreateNetworkInterface") == 1


def test_pods_come_up_although_ec2_refuses_a_third_of_the_calls(world: EniWorld) -> None:
    """Refused calls are repeated, no interface is created twice, and none is left unattached."""
    node, before = world.nodes[0], len(world.ec2.calls)
    interfaces = len(node.instance.interfaces)
    node.report(pods=110)
    world.ec2.faults.throttled = 1 / 3
    try:
        with node.running_coild(*FLAGS):
            pods = [node.add_pod() for _ in range(2 * PODS_OF_INTERFACE + 1)]
            assert len({pod.address for pod in pods}) == len(pods)
            for pod in pods:
                assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)
            node.wait_addresses(3 * PODS_OF_INTERFACE)
    finally:
        world.ec2.faults.throttled = 0.0
    calls = world.ec2.calls[before:]
    assert THROTTLED in {call.error for call in calls}
    created = [call for call in calls if call.action == "CreateNetworkInterface" and not call.error]
    assert len(created) == len(node.instance.interfaces) - interfaces
    assert {each.instance for each in read_state(world.ec2).interfaces.values()} <= {
        world.endpoint.id,
        *(each.instance.id for each in world.nodes),
    }


@pytest.mark.slow
def test_a_fresh_node_that_cannot_give_an_address_is_not_ready_for_pods(world: EniWorld) -> None:
    node = world.nodes[1]
    world.ec2.faults.refusals[ASSIGN] = ["Unavailable"] * 1000
    with node.running_coild(*FLAGS):
        said = wait_bad(world, node)
        assert said.status is not None
        assert said.status.code == NOT_AVAILABLE
        assert said.condition["reason"] == SHORTAGE
        for reason in (said.status.message, said.condition["message"], said.unready["addresses"]):
            assert ASSIGN in reason

        world.ec2.faults.refusals.clear()
        assert wait_good(world, node).condition["reason"] == AVAILABLE
        with node.pod() as pod:
            assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)


def test_a_node_whose_addresses_are_all_taken_says_so_and_keeps_its_pods(world: EniWorld) -> None:
    """With STATUS failing, the node would be NotReady, and its pods would be taken out of their Services."""
    node = world.nodes[1]
    with node.running_coild(*FLAGS, "--max-eni=1", "--acquire-timeout=1s"):
        pods: list[EniPod] = [node.add_pod() for _ in range(PODS_OF_INTERFACE)]
        said = wait_bad(world, node)
        assert "all addresses are taken" in said.condition["message"]
        assert said.status is None
        with pytest.raises(CniError, match="all addresses are taken") as refused:
            node.runtime.add(node.sandbox())
        assert refused.value.code == TRY_AGAIN_LATER

        pods.pop().delete()
        wait_good(world, node)
        with node.pod() as later:
            assert ask(later.host, world.endpoint.host, world.endpoint.primary) == str(later.address)


def test_a_role_that_may_not_tag_creates_nothing_and_the_node_has_one_event(world: EniWorld) -> None:
    """The tags come with the creation, so there is no interface without them that nobody would clear up."""
    node = world.nodes[1]
    before, asked = read_state(world.ec2).interfaces.keys(), len(world.ec2.calls)
    world.ec2.faults.denied = {"CreateTags"}
    try:
        with node.running_coild(*FLAGS, "--acquire-timeout=1s"):
            pods = [node.add_pod() for _ in range(PODS_OF_INTERFACE)]
            wait_until(lambda: denials(node), what="the Node's Event")
            [event] = denials(node)
            assert event["type"] == "Warning"
            assert "ec2:CreateNetworkInterface together with ec2:CreateTags" in event["message"]
            with pytest.raises(CniError, match="ec2:CreateTags") as refused:
                node.runtime.add(node.sandbox())
            assert refused.value.code == TRY_AGAIN_LATER
            assert read_state(world.ec2).interfaces.keys() == before
            assert [call.action for call in world.ec2.calls[asked:]].count("CreateNetworkInterface") == 1

            world.ec2.faults.denied = set()
            node.coild.crash()  # the next process does not wait for minutes
            node.coild.wait_ready()
            pods.append(node.add_pod())
            made = pods[-1].interface
            assert made.id not in before
            wait_until(lambda: pods[-1].interface.goes_with_instance, what="it goes with its instance")
            assert len(denials(node)) == 1
    finally:
        world.ec2.faults.denied = set()


def denials(node: EniNode) -> list[dict[str, Any]]:
    """The Events of the Node about calls that EC2 denies."""
    return node.events("Ec2CallDenied")
