"""A pod that only listens hears on when its gateway node is lost: before its connection, or the server, gives up."""

import pytest

from integration.eip.test_download import listening
from integration.eip.world import World
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver, pytest.mark.timing]


def test_a_download_outlives_the_loss_of_its_gateway(world: World) -> None:
    """Of a pod on another node, and of one on the node that takes over."""
    with listening(world, ("n1",), ("n3", "n2")) as traffic:
        traffic.gateway.select("n1", "n2")
        wait_until(lambda: traffic.gateway.lists("n2"), what="n2 is a gateway")
        pauses = traffic.move(world.node("n1").die, "n3", "n2")
        assert traffic.policy.wait_placed() == "n2"
        print(f"\npause of a download, loss of the gateway: {pauses}")
