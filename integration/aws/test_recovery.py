"""coild dies, or the node, while EC2, the metadata service and the API server are silent: what is known goes on."""

from collections.abc import Iterator
from typing import Final

import pytest

from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError
from integration.aws.node import EniNode, EniPod
from integration.aws.talk import ask
from integration.aws.world import PODS_OF_INTERFACE, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.egress.conversation import Conversation
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

INTERFACES: Final = 3
FLAGS: Final = ("--eni-resync-interval=1s", "--eni-describe-lag=1s", "--acquire-timeout=1s")


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[EniWorld]:
    with EniWorld.up(plane) as world:
        yield world
        assert world.spoofed() == []


@pytest.fixture
def isolation(world: EniWorld) -> Iterator[EniWorld]:
    """The world, to be isolated, and back afterwards."""
    yield world
    world.rejoin()


def refused(node: EniNode) -> CniError:
    """The error of an ADD that must not succeed."""
    with pytest.raises(CniError) as failure:
        node.runtime.add(node.sandbox())
    return failure.value


def await_refused(node: EniNode, *, because: str) -> None:
    """Return when an ADD fails for that reason. Until coild knows it, it gives another one."""

    def said() -> bool:
        failure = refused(node)
        assert failure.code == TRY_AGAIN_LATER
        return because in failure.message

    wait_until(said, what=f"an ADD is refused because of {because}")


def test_a_fresh_node_without_ec2_says_what_is_missing_and_begins_when_ec2_is_there(isolation: EniWorld) -> None:
    node = isolation.nodes[1]
    isolation.ec2.faults.refusals["DescribeNetworkInterfaces"] = ["Unavailable"] * 1000
    with node.running_coild(*FLAGS, "--cooling=1s"):
        await_refused(node, because="DescribeNetworkInterfaces")
        isolation.ec2.faults.refusals.clear()
        pod = node.add_pod()
        assert ask(pod.host, isolation.endpoint.host, isolation.endpoint.primary) == str(pod.address)


def test_killed_and_started_again_while_nobody_answers(isolation: EniWorld) -> None:
    world, node, endpoint = isolation, isolation.nodes[1], isolation.endpoint
    with node.running_coild(*FLAGS, "--cooling=1s"):
        pods = node.pods_on(0, 1)
        node.wait_addresses(INTERFACES * PODS_OF_INTERFACE)
        before = node.instance.interfaces
        with (
            Conversation(pods[0].host, endpoint.host, str(endpoint.primary)) as first,
            Conversation(pods[1].host, endpoint.host, str(endpoint.primary)) as second,
            Conversation(pods[1].host, world.vpc.internet, "203.0.113.10") as outside,
        ):
            world.isolate(silently=True)
            node.coild.crash()
            node.coild.wait_ready()
            for pod in pods:
                pod.check()
            with node.pod() as new:
                assert ask(new.host, endpoint.host, endpoint.primary) == str(new.address)
                assert new.address not in {pod.address for pod in pods}
            pods.pop().delete()
            for conversation in (first, second, outside):
                conversation.goes_on()
            world.rejoin()
            with node.pod() as later:
                assert ask(later.host, endpoint.host, endpoint.primary) == str(later.address)
            for pod in pods:
                pod.check()
            assert node.instance.interfaces == before, "nothing was released"


@pytest.mark.slow
def test_after_a_reboot_addresses_of_before_cool_down(isolation: EniWorld) -> None:
    """The journal is on a disk; everything else of the node is new, and nobody serves it."""
    world, node, endpoint = isolation, isolation.nodes[0], isolation.endpoint
    with node.running_coild(*FLAGS, "--cooling=1h"):
        gone = {pod.address for pod in node.pods_on(0, 1)}
        deleted = node.add_pod()
        gone.add(deleted.address)
        deleted.delete()
        node.wait_addresses(INTERFACES * PODS_OF_INTERFACE)
        every = {address for each in node.instance.interfaces for address in each.addresses[1:]}

        node.reboot()
        world.isolate(silently=False)
        node.coild.start()
        node.coild.wait_ready()
        fresh = [node.add_pod() for _ in every - gone]
        assert {pod.address for pod in fresh} == every - gone
        for pod in fresh:
            assert ask(pod.host, endpoint.host, endpoint.primary) == str(pod.address)
            assert ask(pod.host, world.vpc.internet, "203.0.113.10") == str(node.instance.primary)
        assert refused(node).code == TRY_AGAIN_LATER
        world.rejoin()
        await_refused(node, because="cool")


def test_a_del_that_was_missed_frees_the_address(world: EniWorld) -> None:
    """The sandbox is gone, and nobody says so: coild finds out by itself after its restart."""
    node = world.nodes[1]
    with node.running_coild(*FLAGS, "--cooling=1s"):
        lost = node.add_pod()
        lost.sandbox.destroy()
        node.coild.crash()
        node.coild.wait_ready()
        await_given_again(node, lost)


def test_a_del_that_was_missed_is_noticed_by_a_coild_that_runs_on(world: EniWorld) -> None:
    """Others that have a sandbox keep their addresses."""
    node = world.nodes[1]
    with node.running_coild(*FLAGS, "--cooling=1s", "--addressblock-gc-interval=1s"):
        lost, kept = node.add_pod(), node.add_pod()
        lost.sandbox.destroy()
        await_given_again(node, lost)
        kept.check()
        assert ask(kept.host, world.endpoint.host, world.endpoint.primary) == str(kept.address)


def test_pods_that_end_while_coild_is_away_have_ended_and_their_addresses_cool_down(world: EniWorld) -> None:
    """The node is full: coild's own new pod could not come before one of them goes."""
    node = world.nodes[1]
    with node.running_coild(*FLAGS, "--cooling=1s"):
        # What pods of the tests before had has cooled down once all of it is held.
        pods = [node.add_pod() for _ in range(INTERFACES * PODS_OF_INTERFACE)]
        gone, slow, *kept = pods
        node.coild.kill()
        gone.delete()
        node.runtime.delete(slow.sandbox, cached=slow.result)
        node.runtime.delete(slow.sandbox, cached=slow.result)
        node.start_coild(*FLAGS, "--cooling=1h")
        assert gone.cools_down
        assert slow.cools_down, "though its sandbox is there still"
        assert refused(node).code == TRY_AGAIN_LATER
        assert node.deletes == []
        for pod in kept:
            pod.check()


def test_an_address_whose_pod_has_ended_while_coild_was_away_is_given_again(world: EniWorld) -> None:
    node = world.nodes[1]
    with node.running_coild(*FLAGS, "--cooling=1s"):
        lost = node.add_pod()
        node.coild.kill()
        lost.delete()
        assert len(node.deletes) == 1
        node.coild.start()
        node.coild.wait_ready()
        await_given_again(node, lost)


def test_a_sandbox_whose_recorded_del_was_carried_out_is_wired_again(world: EniWorld) -> None:
    """By the same container's name: the DEL is the older one, whenever coild comes to it."""
    node = world.nodes[1]
    with node.running_coild(*FLAGS, "--cooling=1s"):
        pod = node.add_pod()
        node.coild.kill()
        node.runtime.delete(pod.sandbox, cached=pod.result)
        node.coild.start()
        node.coild.wait_ready()
        again = node.runtime.add(pod.sandbox)
        assert node.deletes == []
        node.runtime.check(pod.sandbox, cached=again)


def await_given_again(node: EniNode, lost: EniPod) -> None:
    """Add pods until one of them gets the address, at the latest with the last one that the node has an address for."""
    pods: list[EniPod] = []
    while lost.address not in {pod.address for pod in pods}:
        assert len(pods) < INTERFACES * PODS_OF_INTERFACE
        pods.append(node.add_pod())
