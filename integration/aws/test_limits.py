"""What an instance's type can have: no prefixes with the hypervisor Xen, and fewer addresses than pods are allowed."""

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from coil.crd.node_condition import POD_LIMIT_TOO_HIGH
from coild.eni.node_condition import BEYOND_ADDRESSES, WITHIN_ADDRESSES
from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError
from integration.aws.node import EniNode
from integration.aws.talk import ask
from integration.aws.world import FLAGS, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

XEN: Final = "t2.small"
"""Three interfaces with four addresses each."""
MOST: Final = 9
ALLOWED: Final = 110
PREFIXES: Final = ("--enable-prefix-delegation=true", "--warm-prefix-target=1", "--acquire-timeout=1s")


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[EniWorld]:
    with EniWorld.up(plane, nodes=1, instance_type=XEN) as world:
        yield world
        assert world.spoofed() == []


def numbers(text: str) -> set[int]:
    return set(map(int, re.findall(r"\d+", text)))


def condition(node: EniNode) -> dict[str, Any]:
    return node.conditions().get(POD_LIMIT_TOO_HIGH, {})


def test_a_node_without_prefixes_that_allows_too_many_pods(world: EniWorld) -> None:
    """It never asks for prefixes, and says with both numbers how many pods can come."""
    node = world.nodes[0]
    node.report(pods=ALLOWED)
    with node.running_coild(*FLAGS, *PREFIXES):
        pods = [node.add_pod() for _ in range(MOST)]
        assert len({pod.address for pod in pods}) == MOST
        assert all(each.prefixes == () for each in node.instance.interfaces)
        for pod in pods:
            assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)
        assert [call for call in world.ec2.calls if call.error] == []

        wait_until(lambda: condition(node).get("status") == "True", what="the condition of the Node")
        assert condition(node)["reason"] == BEYOND_ADDRESSES
        wait_until(lambda: node.events(BEYOND_ADDRESSES), what="the Event of the Node")
        [event] = node.events(BEYOND_ADDRESSES)
        assert event["type"] == "Warning"
        with pytest.raises(CniError, match="lower the kubelet's maxPods") as refused:
            node.runtime.add(node.sandbox())
        assert refused.value.code == TRY_AGAIN_LATER
        for said in (condition(node)["message"], event["message"], refused.value.message):
            assert {ALLOWED, MOST} <= numbers(said)
        metrics = node.metrics()
        assert (metrics["coil_node_eni_allocatable_pods"], metrics["coil_node_eni_ip_max"]) == (ALLOWED, MOST)

        node.report(pods=MOST)
        node.coild.crash()  # the next process reads the Node at once
        node.coild.wait_ready()
        wait_until(lambda: condition(node).get("reason") == WITHIN_ADDRESSES, what="the condition is over")
        assert condition(node)["status"] == "False"
        assert len(node.events(BEYOND_ADDRESSES)) == 1
