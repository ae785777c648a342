"""A primary interface that is not device 0, and addresses that the node itself has: neither is ever a pod's."""

from collections.abc import Iterator

import pytest

from integration.aws import administrator
from integration.aws.node import EniNode
from integration.aws.talk import ask
from integration.aws.world import FLAGS, PODS_OF_INTERFACE, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[EniWorld]:
    with EniWorld.up(plane, nodes=1, primary_device=1) as world:
        yield world
        assert world.spoofed() == []


@pytest.fixture
def node(world: EniWorld) -> EniNode:
    return world.nodes[0]


def test_no_pod_gets_anything_of_what_is_not_the_nodes(world: EniWorld, node: EniNode) -> None:
    """An administrator's interface is device 0, with addresses that look like any pod's."""
    subnet = node.instance.primary_interface.subnet.id
    theirs = administrator.attach(
        world.ec2, node.instance.id, subnet, device=0, addresses=("10.1.0.201", "10.1.0.202", "10.1.0.203")
    )
    [before] = [each for each in node.instance.interfaces if each.id == theirs]
    with node.running_coild(*FLAGS, "--warm-ip-target=1", "--acquire-timeout=1s"):
        pods = [node.add_pod() for _ in range(2 * PODS_OF_INTERFACE)]
        primary = node.instance.primary_interface
        assert (primary.device, [each.device for each in node.instance.interfaces]) == (1, [0, 1, 2])
        assert {pod.interface.id for pod in pods} == {each.id for each in node.instance.interfaces} - {theirs}
        own = {each.addresses[0] for each in node.instance.interfaces}
        assert not own & {pod.address for pod in pods}
        for device in (1, 2):
            pod = next(pod for pod in pods if pod.interface.device == device)
            assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)
            assert ask(pod.host, world.vpc.internet, "203.0.113.10") == str(node.instance.primary)
            assert ask(world.endpoint.host, pod.host, pod.address) == str(world.endpoint.primary)
    [after] = [each for each in node.instance.interfaces if each.id == theirs]
    assert after == before
    administrator.detach(world.ec2, theirs)


def test_an_address_that_the_node_itself_has_is_no_pods(node: EniNode) -> None:
    """Some tools configure all addresses of an interface on its link; here it happens while coild runs."""
    with node.running_coild(*FLAGS, "--warm-ip-target=3", "--acquire-timeout=1s"):
        node.add_pod()
        wait_until(lambda: node.page()["addresses"]["free"] >= 3, what="some addresses are free")
        used = {address for each in node.page()["interfaces"] for address in _used(each)}
        every = [address for each in node.instance.interfaces for address in each.addresses[1:]]
        own = next(address for address in every if str(address) not in used)
        node.kernel.run("ip", "address", "add", f"{own}/32", "dev", "lo")
        try:
            wait_until(lambda: _withheld(node) == 1, what="the node's own address is withheld")
            given = {node.add_pod().address for _ in range(3 * PODS_OF_INTERFACE - 2)}
            assert own not in given
            assert own in {address for each in node.instance.interfaces for address in each.addresses}
        finally:
            node.kernel.run("ip", "address", "delete", f"{own}/32", "dev", "lo")
        assert node.add_pod().address == own, "it was the only one that was left"


def _used(interface: dict[str, object]) -> list[str]:
    used = interface["used"]
    assert isinstance(used, list)
    return [each["address"] for each in used]


def _withheld(node: EniNode) -> int:
    withheld: int = node.page()["addresses"]["withheld"]
    return withheld
