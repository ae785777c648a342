"""The world of a soak: etcd and API server, two ipam-controllers, three nodes with coild and plugin, pools, namespaces.

All of it is real but for kubelet and container runtime, which `integration.soak.worker` plays.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from coild.addresses.pool_demand import GIVEN_EARLY
from integration.apiserver.bare_node import BareNode
from integration.cluster.control_plane import ControlPlane
from integration.cluster.network import Network
from integration.cluster.workspace import Workspace
from integration.deployment import apply_chart
from integration.soak import overload, partition
from integration.soak.history import History
from integration.soak.pool_setup import PoolSetup
from integration.soak.replica import Replica
from integration.soak.station import Gate, Outage, Station
from integration.soak.witness import Witness

NODES = 3
REPLICAS = 2
COOLING_SECONDS = 1.0
"""How long an address rests before it is given again, and a block before it goes."""

COILD_FLAGS = (f"--cooling={COOLING_SECONDS:.0f}s", "--addressblock-gc-interval=2s", "--acquire-timeout=3s")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything runs. `aborted` is set when a thread of the run has failed."""

    workspace: Workspace
    network: Network
    plane: ControlPlane
    stations: Sequence[Station]
    replicas: Sequence[Replica]
    pool_setup: PoolSetup
    witness: Witness
    history: History
    aborted: threading.Event

    @property
    def log_folder(self) -> Path:
        """What the programs say: a file for all lives of each."""
        return self.workspace.folder / "logs"

    def early_grants(self) -> dict[tuple[str, str], str]:
        """The addresses that a coild says it gave before they had cooled down, each with its container: why."""
        return {
            (line["container"], address): line["reason"]
            for log in self.log_folder.glob("coild-*.log")
            for text in log.read_text(errors="replace").splitlines()
            if GIVEN_EARLY in text
            for line in [json.loads(text)]
            for address in line["addresses"]
        }

    def await_ready(self) -> None:
        """Return when all that was killed is there again. Raises ComponentError for what has ended by itself."""
        for station in self.stations:
            partition.heal(self.network, station.name)
        self.plane.start_apiserver()
        for replica in self.replicas:
            replica.service.wait_ready()
        for station in self.stations:
            station.coild.wait_ready()
            station.await_coild()


@contextmanager
def build_world(history: History) -> Iterator[World]:
    """Takes some seconds; everything ends with the context."""
    aborted = threading.Event()
    with Workspace.create() as workspace, ExitStack() as undo:
        network = Network.create(workspace)
        plane = ControlPlane.start(workspace=workspace, address=network.host4, apiserver_flags=overload.FLAGS)
        apply_chart(plane)
        pool_setup = PoolSetup(plane)
        pool_setup.furnish()
        replicas = []
        for number in range(REPLICAS):
            replicas.append(Replica(plane, f"controller-{number}"))
            # Only then its ports are seen to be taken.
            replicas[-1].service.wait_ready()
        nodes = [BareNode(workspace, network, plane, name=f"node-{number}", index=number) for number in range(NODES)]
        stations = []
        for node in nodes:
            undo.callback(node.destroy_sandboxes)
            node.register()
            station = Station(
                node=node,
                runtime=node.install_plugin(),
                coild=node.start_coild(*COILD_FLAGS),
                gate=Gate(aborted),
                history=history,
                outage=Outage(),
            )
            stations.append(station)
        yield World(
            workspace=workspace,
            network=network,
            plane=plane,
            stations=stations,
            replicas=replicas,
            pool_setup=pool_setup,
            witness=Witness(plane, nodes),
            history=history,
            aborted=aborted,
        )
