"""What the account of coil-raven may do is Neutron's to say: by its own policies, from the roles in a token."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from coil.crd.builtin import EVENTS
from coil.kube.client import KubeClient
from integration.apiserver.ipam_world import until
from integration.cluster.control_plane import ControlPlane
from integration.neutron.keystone import Keystone
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.raven_world import RavenWorld

pytestmark = [pytest.mark.neutron, pytest.mark.apiserver]

NODE = "node-a"


@pytest.fixture(scope="module")
def neutron(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NeutronServer]:
    with NeutronServer.start(tmp_path_factory.mktemp("neutron"), hosts=[NODE], policies=True) as server:
        yield server


async def test_a_right_that_is_missing_is_named_and_nothing_is_left_half_made(
    plane: ControlPlane, admin: KubeClient, neutron: NeutronServer, tmp_path: Path
) -> None:
    with Keystone.start({"network": neutron.endpoint}) as keystone:
        clouds = keystone.write_clouds(tmp_path / "clouds.yaml")
        with RavenWorld.start(plane, admin, neutron, tmp_path, clouds=clouds) as world:
            await world.wait_for_networks()
            before = neutron.snapshot()
            namespace = await world.add_namespace("member")
            await world.add_pod(namespace, "web", node=NODE)
            await until(partial(world.is_told, namespace, "NoPort"), what="the missing right is told")
            told = [each.message for each in await admin.list(EVENTS, namespace=namespace) if each.reason == "NoPort"]
            assert all("create_port:binding:host_id" in message for message in told), told
            assert await world.handoff(namespace, "web") is None
            await world.wait_for_networks()
            # One interface of the router for each family, and no port of the pod.
            assert neutron.snapshot()["ports"] == before["ports"] + 2

            keystone.roles = ("admin", "member", "reader")
            world.raven.crash()
            world.raven.wait_ready()
            await world.wait_for_handoffs([(namespace, "web")])
            handoff = await world.handoff(namespace, "web")
            assert handoff is not None
            assert handoff.segmentation is not None, "only administrators see it"
