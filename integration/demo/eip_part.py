"""The EIP gateway in the demo: what is going to be shown, the stage that it is shown on, and did it hold.

The stage is that of the tests (`integration.eip`): network namespaces of this machine on one link, and a real API
server. The tunnels are VXLAN, so no other kernel is needed. All of it ends with the part, also where that fails or is
interrupted.
"""

import subprocess
import sys
import textwrap
import time
from contextlib import ExitStack

from integration.demo.eip_cast import GATEWAYS
from integration.demo.eip_scene import show
from integration.demo.narration import DemoError, logs_if_it_fails, step
from integration.demo.part import play, wait_for_turn
from integration.egress.api import ApiError
from integration.eip.control_plane import start_control_plane
from integration.eip.world import World
from integration.service import ServiceError

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
_FAILURES = (ApiError, AssertionError, OSError, ServiceError, subprocess.SubprocessError)
"""What becomes a DemoError; other errors of the stage speak for themselves."""


def show_eip() -> None:
    """The whole part. Raises DemoError if something did not hold, or what the stage could not be made for."""
    print(render_announcement(), flush=True)
    try:
        with ExitStack() as stack:
            world = build_stage(stack)
            wait_for_turn()
            began = time.monotonic()
            with logs_if_it_fails(world.logs):
                show(world)
    except _FAILURES as error:
        raise DemoError(f"the EIP gateway did not hold: {str(error) or repr(error)}") from error
    print(f"The EIP held, in {time.monotonic() - began:.0f} s.")


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
    filled = (textwrap.fill(paragraph, width=110, break_on_hyphens=False) for paragraph in (_STORY, _STAGE))
    return "\n\n".join([f"\n{_TITLE}\n{'─' * len(_TITLE)}", *filled]) + "\n"


if __name__ == "__main__":
    sys.exit(play(show_eip))
