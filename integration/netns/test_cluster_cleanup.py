"""How a cluster is taken off the machine: in an order in which nothing of it leaves."""

import pytest

from integration.cluster import cleanup
from integration.cluster.network import Network
from integration.cluster.workspace import Workspace

pytestmark = pytest.mark.kernel


def test_the_link_into_the_cluster_outlives_every_program_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    kill = cleanup._kill
    killed: list[int] = []

    def note(pid: int, cluster: str) -> None:
        killed.append(pid)
        kill(pid, cluster)

    monkeypatch.setattr(cleanup, "_kill", note)
    with Workspace.create() as workspace:
        network = Network.create(workspace)
        programs = {workspace.spawn(f"program-{each}", ["busybox", "sleep", "infinity"]).pid for each in range(8)}
    assert set(killed[: len(programs)]) == programs
    assert network.fabric.holder.pid in killed[len(programs) :]
