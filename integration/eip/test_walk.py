"""DESIGN.md's walk of one policy, followed by tracing, from the API server's review of it to the kernel of its node."""

from itertools import chain
from pathlib import Path

import pytest

from integration.eip.controllers import Controllers
from integration.eip.description import Description
from integration.eip.world import World
from integration.patience import wait_until
from integration.walk.recording import Recording
from integration.walk.story import check_order, in_order, steps

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver, pytest.mark.timing]

POLICY = "The way of a policy to nftables"
OF_CONTROLLER = 4
"""So many steps; the others are the agent's."""
MOST_OF_A_POLICY = 130
WALKS = 5
"""A gateway is reconciled for a tunnel's phase or a Lease, too: then its modules come before the policy's. What is not
in all walks happened beside them, and is not counted.
"""


def test_a_policy_reaches_nftables_the_way_that_the_design_tells(
    world: World, control: tuple[Description, Controllers | None], tmp_path: Path
) -> None:
    """On a node that has the pod and the address, so that one agent does all of an agent's part."""
    controllers = control[1]
    assert controllers is not None, "the controllers run on another machine"
    node = world.node("n3")
    said = steps(POLICY)
    by_controller, by_agent = list(chain(*said[:OF_CONTROLLER])), list(chain(*said[OF_CONTROLLER:]))
    controller, agent = Recording(tmp_path / "controller"), Recording(tmp_path / "agent")
    with (
        controllers.traced(controller) as leader,
        node.restarted_agent("--resync-interval=1h", recording=agent) as daemon,
        world.gateway(node.name) as gateway,
        world.pod(node.name, app="walk") as pod,
    ):
        world.await_lease(node)
        wait_until(lambda: gateway.lists(node.name), what=f"{node.name} is ready for addresses")

        def walk() -> tuple[list[str], list[str]]:
            controller.await_rest(leader, "coil.reconcile.controller")
            agent.await_rest(daemon, "coil_egress_agent.eip.applier")
            controller.since_last(leader)
            # With destinations, of which admission has to find out whether they are within the cluster.
            with world.policy(gateway, labels={"app": "walk"}, destSubnet=["0.0.0.0/0", "::/0"]) as policy:
                for family in (4, 6):
                    world.await_seen(pod, policy.eip(family))
                return controller.since_last(leader), agent.since_last(daemon)

        walks = [walk() for _ in range(WALKS)]
    by_program = list(zip(*walks, strict=True))
    in_all = [set[str].intersection(*map(set, each)) for each in by_program]
    print(f"a policy runs {len(in_all[0])} modules of the controller and {len(in_all[1])} of the agent:")
    print(*walks, sep="\n")
    for names, found in zip((by_controller, by_agent), by_program, strict=True):
        check_order(names, next((modules for modules in found if in_order(names, modules)), found[0]))
    assert sum(map(len, in_all)) <= MOST_OF_A_POLICY
