"""The EIP gateway in the demo: what is going to be shown, the stage that it is shown on, and did it hold.

The stage is that of the tests (`integration.eip`): network namespaces of this machine on one link, and a real API
server. The tunnels are VXLAN, so no other kernel is needed. All of it ends with the part, also where that fails or is
interrupted.
"""

import sys
from contextlib import ExitStack

from integration.demo.eip_cast import GATEWAYS
from integration.demo.eip_scene import show
from integration.demo.narration import render_opening, step
from integration.demo.part import play
from integration.demo.staged_part import show_on_stage
from integration.egress.api import ApiError
from integration.eip.control_plane import start_control_plane
from integration.eip.world import World

_TITLE = "EIP gateway: an address that outlives its node"
_STORY = (
    "A policy gives chosen pods an address of the nodes' own network (EIP), by which hosts outside know them. A node "
    "of a group carries it, and the pods' packets get there through VXLAN tunnels. When that node is lost, another one "
    "takes the address, never before the first one has let go of it, and connections go on."
)
_STAGE = (
    f"Three nodes, {' and '.join(GATEWAYS)} of them gateways, and a server outside: network namespaces on one link. "
    "API server, egress-controller and the nodes' agents are the real ones, started while the cluster was shown."
)


def show_eip() -> None:
    """The whole part. Raises DemoError if something did not hold, or what the stage could not be made for."""
    print(render_announcement(), flush=True)
    show_on_stage("The EIP gateway", build=build_stage, scene=show, failure=ApiError)


def build_stage(stack: ExitStack) -> World:
    """What is made on that stack ends with it."""
    description = step(
        "the control plane: etcd, API server, Coil's egress-controller",
        lambda: stack.enter_context(start_control_plane()),
    )
    return step(
        "three nodes with Coil's agents, on one link with a server outside",
        lambda: stack.enter_context(World.up(description)),
    )


def render_announcement() -> str:
    """What is going to be shown, and where."""
    return render_opening(_TITLE, _STORY, _STAGE)


if __name__ == "__main__":
    sys.exit(play(show_eip))
