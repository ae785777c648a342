"""Ports of OpenStack Neutron in the demo: what is going to be shown, the cloud for it, and did it hold.

Neutron and Octavia are OpenStack's own; what their agents and amphorae would forward, a router in a network namespace
does, built from their objects. All of it ends with the part, also where that fails or is interrupted.
"""

import sys
from contextlib import ExitStack

from integration.apiserver.plane_pool import PlanePool
from integration.apiserver.runtime import CniError
from integration.demo.narration import render_opening, step
from integration.demo.neutron_scene import NeutronStage, show
from integration.demo.part import play
from integration.demo.staged_part import show_on_stage

_TITLE = "OpenStack: pods with ports of Neutron"
_STORY = (
    "coil-raven represents the cluster in OpenStack: a network for each namespace, a port for each pod, a load "
    "balancer for each Service. coild on the pod's node connects the pod to its port, so OpenStack knows each pod by "
    "its address and its hardware address, and there is no kube-proxy."
)
_STAGE = (
    "Two nodes and a router are network namespaces. Neutron and Octavia are OpenStack's own, with sqlite and without "
    "agents: the router forwards what these would, as Neutron's and Octavia's objects say. API server, plugin, coild "
    "and coil-raven are the real ones."
)


def show_neutron() -> None:
    """The whole part. Raises DemoError if something did not hold, or what the stage could not be made for."""
    print(render_announcement(), flush=True)
    show_on_stage("Ports of Neutron", build=build_stage, scene=show, failure=CniError)


def build_stage(stack: ExitStack) -> NeutronStage:
    """What is made on that stack ends with it."""
    plane = step(
        "the control plane: etcd, API server, the chart's kinds and roles",
        lambda: stack.enter_context(stack.enter_context(PlanePool()).lend()),
    )
    return step(
        "Neutron and Octavia, empty; two nodes with coild, a router, a host outside; coil-raven",
        lambda: stack.enter_context(NeutronStage.up(plane)),
    )


def render_announcement() -> str:
    """What is going to be shown, and where."""
    return render_opening(_TITLE, _STORY, _STAGE)


if __name__ == "__main__":
    sys.exit(play(show_neutron))
