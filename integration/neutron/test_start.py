"""coil-raven does not begin where OpenStack is not as it has to be, and says why by its exit code."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.deployment import apply
from integration.neutron.neutron_server import LOCALHOST, NeutronServer
from integration.neutron.raven_world import clouds_file, raven_command, raven_documents

pytestmark = [pytest.mark.neutron, pytest.mark.apiserver]

END_SECONDS = 120.0


@pytest.fixture(scope="module")
def neutron(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NeutronServer]:
    with NeutronServer.start(tmp_path_factory.mktemp("neutron")) as server:
        yield server


@pytest.mark.parametrize(
    ("flag", "code", "said"),
    [
        ("--cloud=another", 3, "Cloud another was not found"),
        ("--public-network=absent", 5, "no external network with the name 'absent'"),
        ("--router=absent", 6, "no router with the name 'absent'"),
    ],
)
async def test_a_finding_ends_it(
    plane: ControlPlane, neutron: NeutronServer, tmp_path: Path, flag: str, code: int, said: str
) -> None:
    apply(plane, *raven_documents())
    metrics = free_port(LOCALHOST, 9394)
    ports = (metrics, free_port(LOCALHOST, metrics + 1))
    command = raven_command(plane, clouds_file(tmp_path, neutron), ports=ports, flags=[flag])
    process = plane.workspace.spawn(f"raven-{code}", command)
    assert process.wait(END_SECONDS) == code
    assert said in process.tail()
    assert neutron.snapshot()["networks"] == 0
