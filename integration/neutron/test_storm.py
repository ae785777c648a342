"""500 things happen while coil-raven and coild are killed and OpenStack fails in every way: nothing is doubled, nothing
is left, and no pod has another's port.

COIL_SEED=<number> has the same things happen again, as far as the machine allows it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coil.kube.client import KubeClient
from integration.apiserver.bare_node import UPLINK_MTU
from integration.apiserver.ipam_world import until
from integration.apiserver.neighbours import Neighbours
from integration.apiserver.refusal_log import missing_rights
from integration.cluster.control_plane import ControlPlane
from integration.deployment import grant_node_list, revoke_node_list
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.octavia_server import OctaviaServer
from integration.neutron.port_agent import PortAgent, port_links
from integration.neutron.raven_world import PUBLIC, SERVICE_FLAGS, RavenWorld
from integration.neutron.storm import Storm
from integration.neutron.weather import Mishap, Weather
from integration.patience import wait_until_clean

# It takes five to eight minutes by itself.
pytestmark = [pytest.mark.neutron, pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(2400)]

SEED = int(os.environ.get("COIL_SEED", "1"))
OPERATIONS = 500
COILD_FLAGS = (
    "--address-source=neutron",
    "--enable-egress=false",
    "--acquire-timeout=10s",
    "--neutron-bind-timeout=20s",
    "--neutron-active-timeout=20s",
)
NODES = ("node-0", "node-1")
CLEAN_SECONDS = 300.0


@pytest.fixture
def neighbours(plane: ControlPlane) -> Iterator[Neighbours]:
    """Two nodes with coild."""
    with Neighbours.up(plane) as neighbours:
        grant_node_list(plane)
        with neighbours.coild(*COILD_FLAGS):
            yield neighbours
            for station in neighbours.stations:
                assert missing_rights(station.coild.process.log) == []
        revoke_node_list(plane)


@pytest.mark.parametrize("pool", [0, 3])
async def test_nothing_is_doubled_lost_or_anothers(
    plane: ControlPlane, admin: KubeClient, neighbours: Neighbours, tmp_path: Path, pool: int
) -> None:
    stations = neighbours.stations
    with (
        NeutronServer.start(tmp_path, hosts=NODES, mtu=UPLINK_MTU) as neutron,
        OctaviaServer.start(tmp_path, neutron) as octavia,
        Weather.start({"network": neutron.endpoint, "load_balancer": octavia.endpoint}, seed=SEED) as weather,
        PortAgent(neutron, {station.name: station.node.kernel for station in stations}),
    ):
        neutron.add_public_network(PUBLIC, "192.0.2.0/24")
        clouds = weather.write_clouds(tmp_path / "clouds.yaml")
        flags = (*SERVICE_FLAGS, f"--public-network={PUBLIC}", f"--port-pool-size={pool}")
        with RavenWorld.start(plane, admin, neutron, tmp_path, *flags, octavia=octavia, clouds=clouds) as world:
            await world.wait_for_networks()
            storm = Storm(world, neighbours, octavia, weather, seed=SEED)
            await until(storm.is_complete, what="the load balancer of the Service kubernetes")
            before = {**neutron.snapshot(), **octavia.snapshot()}
            await storm.play(OPERATIONS)
            assert weather.happened.total() > weather.happened[Mishap.NONE], "all calls have gone past the weather"
            assert storm.adds["done"] > 0, storm.adds
            await storm.calm()
            await storm.clear()

            def remains() -> list[str]:
                found = {**neutron.snapshot(), **octavia.snapshot()}
                return [
                    *(
                        f"{found[kind]} {kind} in place of {before[kind]}"
                        for kind in before
                        if found[kind] != before[kind]
                    ),
                    *(f"{station.name}: {link}" for station in stations for link in port_links(station.node.kernel)),
                ]

            wait_until_clean(remains, after=f"seed {SEED}", timeout=CLEAN_SECONDS)
    print(SEED, storm.done, storm.adds, weather.happened)
