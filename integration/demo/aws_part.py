"""Addresses of network interfaces in the demo: what is going to be shown, the VPC for it, and did it hold.

The VPC is that of the tests (`integration.aws`): instances are network namespaces of this machine, and a router
delivers by interface, as EC2 says. EC2 and the metadata service are served here, so nothing leaves the machine. All of
it ends with the part, also where that fails or is interrupted.
"""

import sys
from contextlib import ExitStack

from integration.apiserver.plane_pool import PlanePool
from integration.apiserver.runtime import CniError
from integration.aws.world import PODS_OF_INTERFACE, TYPE, EniWorld
from integration.demo.aws_scene import show
from integration.demo.narration import render_opening, step
from integration.demo.part import play
from integration.demo.staged_part import show_on_stage

_TITLE = "AWS: pods with addresses of the VPC"
_STORY = (
    "In a VPC, Coil gives pods addresses of the node's elastic network interfaces. Everything in the VPC reaches a "
    "pod by its own address, without an overlay and without translation. Packets that leave the VPC have the primary "
    "address of the pod's node."
)
_STAGE = (
    f"Two instances of the type {TYPE}, which may have three interfaces with {PODS_OF_INTERFACE} addresses for pods "
    "each. They, a machine in the VPC that is not a node, and a host on the internet are network namespaces around a "
    "router. API server, plugin and coild are the real ones. EC2 and the instances' metadata are served on this "
    "machine, by a stand-in that keeps AWS's limits."
)


def show_aws() -> None:
    """The whole part. Raises DemoError if something did not hold, or what the stage could not be made for."""
    print(render_announcement(), flush=True)
    show_on_stage("Addresses of the VPC", build=build_stage, scene=show, failure=CniError)


def build_stage(stack: ExitStack) -> EniWorld:
    """What is made on that stack ends with it."""
    plane = step(
        "the control plane: etcd, API server, the chart's kinds and roles",
        lambda: stack.enter_context(stack.enter_context(PlanePool()).lend()),
    )
    return step(
        "the VPC with its router, EC2 and metadata; two instances, a machine that is not a node, hosts outside",
        lambda: stack.enter_context(EniWorld.up(plane)),
    )


def render_announcement() -> str:
    """What is going to be shown, and where."""
    return render_opening(_TITLE, _STORY, _STAGE)


if __name__ == "__main__":
    sys.exit(play(show_aws))
