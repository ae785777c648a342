"""Where the API server does not stream lists, coil-raven lists in pages what it follows, and then watches it.

See `integration/apiserver/test_list_in_pages.py`, which has the other programs.
"""

from functools import partial
from pathlib import Path

import pytest

from coil.kube.client import KubeClient
from integration.cluster.control_plane import ControlPlane
from integration.cluster.workspace import Workspace
from integration.deployment import apply_chart
from integration.metrics_page import await_followed, fetch_here
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.octavia_server import OctaviaServer
from integration.neutron.raven_world import SERVICE_FLAGS, RavenWorld

pytestmark = [pytest.mark.neutron, pytest.mark.apiserver]


async def test_coil_raven(tmp_path: Path) -> None:
    with (
        Workspace.create() as workspace,
        NeutronServer.start(tmp_path) as neutron,
        OctaviaServer.start(tmp_path, neutron) as octavia,
    ):
        plane = ControlPlane.start(workspace=workspace, apiserver_flags=["--feature-gates=WatchList=false"])
        apply_chart(plane)
        async with KubeClient.connect(plane.admin_kubeconfig) as admin:
            with RavenWorld.start(plane, admin, neutron, tmp_path, *SERVICE_FLAGS, octavia=octavia) as world:
                followed = {"namespaces", "nodes", "pods", "services", "endpointslices"}
                await_followed(partial(fetch_here, world.metrics), followed)
