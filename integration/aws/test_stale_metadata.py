"""Metadata that stay those of a node without pods: nothing is taken from the pods that it has."""

from collections.abc import Iterator

import pytest

from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError
from integration.aws.node import EniNode, EniPod
from integration.aws.talk import ask
from integration.aws.test_changes import events_of
from integration.aws.world import FLAGS, PODS_OF_INTERFACE, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

RESYNC = "--eni-resync-interval=1s"
LOOKS = 4
INTERFACES = 3
"""What the node wants for four pods, with one interface to spare: all that it can have."""


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[EniWorld]:
    """Its metadata are those of fresh nodes, which have no address but their own."""
    with EniWorld.up(plane) as world:
        world.metadata.freeze()
        yield world
        assert world.spoofed() == []


def look_again(world: EniWorld) -> None:
    """Return when the node has read the metadata often enough to have acted on them."""
    before = world.metadata.looks
    wait_until(lambda: world.metadata.looks >= before + LOOKS, what="metadata are looked at")


def check_talks(world: EniWorld, pod: EniPod) -> None:
    """The network delivers to its address and from it, and no Event says that the address is lost."""
    assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)
    assert ask(world.endpoint.host, pod.host, pod.address) == str(world.endpoint.primary)
    assert events_of(world, pod) == []


def check_untouched(world: EniWorld, node: EniNode, pods: list[EniPod]) -> None:
    """coild, too, says that the pods have their addresses."""
    assert node.page()["lost"] == []
    for pod in pods:
        pod.check()
        check_talks(world, pod)


@pytest.mark.slow
def test_addresses_that_metadata_do_not_know_stay_with_their_pods(world: EniWorld) -> None:
    node = world.nodes[0]
    with node.running_coild(*FLAGS, RESYNC):
        pods = node.pods_on(0, 1)
        node.wait_addresses(INTERFACES * PODS_OF_INTERFACE)
        wait_until(lambda: all(each.goes_with_instance for each in node.instance.interfaces), what="all is done in EC2")
        interfaces = node.instance.interfaces
        look_again(world)
        check_untouched(world, node, pods)

        node.coild.crash()
        node.coild.wait_ready()
        look_again(world)
        check_untouched(world, node, pods)
        pods.append(node.add_pod())

        world.cut_ec2(silently=False)
        node.coild.crash()
        node.coild.wait_ready()
        look_again(world)
        for pod in pods:
            check_talks(world, pod)
            # Nobody has said which interface has its address, nor that none has.
            with pytest.raises(CniError, match="not known until EC2 answers") as refused:
                pod.check()
            assert refused.value.code == TRY_AGAIN_LATER
        world.rejoin()
        pods.append(node.add_pod())
        check_untouched(world, node, pods)
        assert node.instance.interfaces == interfaces
