"""EC2 describes the interfaces as they were while coild changes them: nothing is done twice, no pod loses anything."""

from collections.abc import Iterator
from functools import partial
from typing import Final

import pytest

from integration.aws import administrator
from integration.aws.node import EniNode
from integration.aws.talk import ask
from integration.aws.test_changes import events_of
from integration.aws.world import PODS_OF_INTERFACE, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

ASSIGN: Final = "AssignPrivateIpAddresses"
ATTACH: Final = "AttachNetworkInterface"
CREATE: Final = "CreateNetworkInterface"
DESCRIBE: Final = "DescribeNetworkInterfaces"
INTERFACES: Final = 2
FLAGS: Final = ("--cooling=1s", "--eni-resync-interval=1s", f"--max-eni={INTERFACES}")
DESCRIPTIONS: Final = 3


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[EniWorld]:
    with EniWorld.up(plane) as world:
        yield world
        assert world.spoofed() == []


@pytest.fixture
def late(world: EniWorld) -> Iterator[EniWorld]:
    """The world, in which EC2 may be made to describe what was so; up to date again afterwards."""
    yield world
    world.ec2.faults.describe_lag = 0.0


def await_descriptions(world: EniWorld) -> None:
    """Return when EC2 has been asked for some more, each because the metadata service has told something new."""
    primary = world.nodes[0].instance.interfaces[0]
    for _ in range(DESCRIPTIONS):
        asked = world.ec2.count(DESCRIBE)
        group = administrator.make_group(world.ec2, f"group-{len(world.ec2.calls)}")
        administrator.set_groups(world.ec2, primary.id, *primary.groups, group)
        wait_until(partial(_has_described_since, world, asked), what="EC2 is asked for a description")
    administrator.set_groups(world.ec2, primary.id, *primary.groups)


def _has_described_since(world: EniWorld, asked: int) -> bool:
    return world.ec2.count(DESCRIBE) > asked


def changes(world: EniWorld) -> dict[str, int]:
    """How often EC2 was asked for each of these, and has done it."""
    done = [call.action for call in world.ec2.calls if not call.error]
    return {action: done.count(action) for action in (ASSIGN, CREATE, ATTACH)}


def test_what_the_node_has_changed_stands_against_descriptions_of_before(late: EniWorld) -> None:
    """Also for a process that begins meanwhile."""
    world, node = late, late.nodes[0]
    world.ec2.faults.describe_lag = 60.0
    with node.running_coild(*FLAGS):
        pods = node.pods_on(0, 1)
        node.wait_addresses(INTERFACES * PODS_OF_INTERFACE)
        once = changes(world)
        assert once == {ASSIGN: 1, CREATE: 1, ATTACH: 1}
        await_descriptions(world)
        node.coild.crash()
        node.coild.wait_ready()
        await_descriptions(world)
        pods += [node.add_pod() for _ in range(INTERFACES * PODS_OF_INTERFACE - len(pods))]
        assert len({pod.address for pod in pods}) == INTERFACES * PODS_OF_INTERFACE
        assert node.page()["lost"] == []
        for pod in pods:
            pod.check()
            assert events_of(world, pod) == []
            assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)
        assert changes(world) == once


def test_an_assignment_without_an_answer_is_not_repeated_while_descriptions_are_of_before(late: EniWorld) -> None:
    """The pod waits until EC2 describes what came of it."""
    world, node = late, late.nodes[1]
    assigned = changes(world)[ASSIGN]
    world.ec2.faults.describe_lag = 3.0
    world.ec2.faults.lost_answers[ASSIGN] = 1
    with node.running_coild("--cooling=1s", "--max-eni=1", "--eni-describe-lag=30s"):
        pod = node.add_pod()
        assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)
        assert [each.error for each in world.ec2.calls if each.action == ASSIGN][-1] == "InternalError"
        assert changes(world)[ASSIGN] == assigned
        check_assigned_once(node)


def check_assigned_once(node: EniNode) -> None:
    """The interface has no more than what one assignment has brought."""
    [primary] = node.instance.interfaces
    assert len(primary.addresses) == 1 + PODS_OF_INTERFACE
