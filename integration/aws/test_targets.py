"""Targets by which nothing is kept ready: a pod that waits is served nevertheless, as long as EC2 has addresses."""

from collections.abc import Iterator
from typing import Final

import pytest

from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError
from integration.aws.talk import ask
from integration.aws.world import FLAGS, PODS_OF_INTERFACE, EniWorld
from integration.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.apiserver

INTERFACES: Final = 3
"""Of the type of the nodes."""
TARGETS: Final = (
    ("--warm-eni-target=0",),
    ("--warm-eni-target=0", "--warm-ip-target=0"),
    ("--minimum-ip-target=2",),
)


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[EniWorld]:
    with EniWorld.up(plane, nodes=len(TARGETS)) as world:
        yield world
        assert world.spoofed() == []


@pytest.mark.parametrize("number", range(len(TARGETS)), ids=[" ".join(targets) for targets in TARGETS])
def test_pods_get_every_address_that_the_node_can_have(world: EniWorld, number: int) -> None:
    node = world.nodes[number]
    with node.running_coild(*FLAGS, *TARGETS[number], "--acquire-timeout=1s"):
        pods = [node.add_pod() for _ in range(INTERFACES * PODS_OF_INTERFACE)]
        assert len({pod.address for pod in pods}) == len(pods)
        assert {pod.interface.id for pod in pods} == {each.id for each in node.instance.interfaces}
        for pod in pods:
            assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)
        with pytest.raises(CniError, match=f"the instance may have {INTERFACES} interfaces") as refused:
            node.runtime.add(node.sandbox())
        assert refused.value.code == TRY_AGAIN_LATER
