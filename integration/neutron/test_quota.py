"""A quota that ends, and room that comes again."""

from functools import partial
from pathlib import Path

import pytest

from coil.crd.builtin import EVENTS, NAMESPACES
from coil.kube.client import KubeClient
from integration.apiserver.ipam_world import until
from integration.cluster.control_plane import ControlPlane
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.raven_world import FAMILIES, RavenWorld

pytestmark = [pytest.mark.neutron, pytest.mark.apiserver]

HOST = "node-a"


@pytest.mark.slow
async def test_a_quota_is_told_and_a_port_comes_when_there_is_room(
    plane: ControlPlane, admin: KubeClient, tmp_path: Path
) -> None:
    """Room for the router's ports and one pod's more."""
    room = FAMILIES * (len(await admin.list(NAMESPACES)) + 1) + 1
    with (
        NeutronServer.start(tmp_path, hosts=[HOST], quotas={"quota_port": room}) as neutron,
        RavenWorld.start(plane, admin, neutron, tmp_path) as world,
    ):
        namespace = await world.add_namespace("quota")
        await world.wait_for_networks()
        await world.add_pod(namespace, "first", node=HOST)
        await world.wait_for_handoffs([(namespace, "first")])
        await world.add_pod(namespace, "second", node=HOST)
        await until(partial(world.is_told, namespace, "NoPort"), what="the Event")
        (event,) = [each for each in await admin.list(EVENTS, namespace=namespace) if each.reason == "NoPort"]
        assert "Quota exceeded for resources: ['port']" in event.message
        await world.delete_pod(namespace, "first")
        await world.wait_for_handoffs([(namespace, "second")])
