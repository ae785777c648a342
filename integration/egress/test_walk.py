"""DESIGN.md's walk of one Egress, followed by tracing, from the start of a router's agent to the tunnels of a client.

What the controller does before that is in integration/apiserver: here it is on another machine.
"""

from pathlib import Path

import pytest

from integration.egress.station import PATIENCE, PAUSE
from integration.egress.world import World
from integration.go_coild import tunnel_link
from integration.patience import wait_until
from integration.walk.recording import Recording
from integration.walk.story import check_order, steps

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

EGRESS = "The way of an Egress to its tunnels"
MOST_OF_AN_AGENT = 90
MOST_OF_AN_ADD = 90


def test_a_client_and_a_router_get_their_tunnels_the_way_that_the_design_tells(world: World, tmp_path: Path) -> None:
    agent, coild = Recording(tmp_path / "agent"), Recording(tmp_path / "coild")
    with (
        world.stations[0].traced_coild(coild) as daemon,
        world.kubelet.traced_agent(agent),
        world.egress() as egress,
    ):
        [router] = egress.routers()
        assert router.container is not None
        prepared = agent.since_last(router.container)
        coild.await_rest(daemon, "coild.egress.client")
        with world.client(egress.name) as client:
            added = coild.since_last(daemon)
            kernel, peers = router.kernel, [tunnel_link(address) for address in client.addresses.values()]
            wait_until(
                lambda: all(kernel.link(peer) for peer in peers),
                what=f"{router.sandbox.pod.name} has tunnels to the client",
                timeout=PATIENCE,
                pause=PAUSE,
            )
            connected = agent.since_last(router.container)
    of_agent = list(dict.fromkeys([*prepared, *connected]))
    print(f"an Egress runs {len(of_agent)} modules of the agent and {len(added)} of coild: {of_agent} {added}")
    *_, preparation, addition, connection = steps(EGRESS)
    check_order(preparation, prepared)
    check_order(addition, added)
    check_order(connection, connected)
    assert len(of_agent) <= MOST_OF_AN_AGENT
    assert len(added) <= MOST_OF_AN_ADD
