"""A node whose pods another CNI plugin wires: CNI's own ptp, with addresses of host-local. Coil comes after it in the
chain, and is there for egress alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from integration.apiserver.runtime import Runtime
from integration.apiserver.sandbox import Sandbox
from integration.apiserver.wired_node import WiredNode
from integration.cluster.requirement import CNI_PLUGINS
from integration.egress.external_host import NETWORKS
from integration.egress.station import Station
from integration.egress.world import World

NAME = "chained"
SUBNETS = {4: "10.120.0.0/24", 6: "fd10:120::/120"}
"""Of its pods; no pool of Coil has them."""
_EVERYWHERE = {4: "0.0.0.0/0", 6: "::/0"}


class ChainedRuntime:
    """As a runtime executes a list of plugins: ADD in its order, each with the result so far, and DEL against it."""

    def __init__(self, first: Runtime, second: Runtime) -> None:
        self._first, self._second = first, second
        self._results: dict[str, dict[str, Any]] = {}

    def add(self, sandbox: Sandbox) -> dict[str, Any]:
        """Raises CniError."""
        result = self._results[sandbox.container_id] = self._first.add(sandbox)
        return self._second.begin("ADD", sandbox, cached=result).result()

    def delete(self, sandbox: Sandbox) -> None:
        """Raises CniError."""
        result = self._results.pop(sandbox.container_id, None)
        self._second.delete(sandbox, cached=result)
        self._first.delete(sandbox, cached=result)


def ptp(node: WiredNode, versions: Sequence[int]) -> Runtime:
    """Executes CNI's ptp on the node."""
    ipam = {
        "type": "host-local",
        "dataDir": str(node.workspace.make_folder(node.name, "host-local")),
        "ranges": [[{"subnet": SUBNETS[version]}] for version in versions],
        "routes": [{"dst": _EVERYWHERE[version]} for version in versions],
    }
    return Runtime(CNI_PLUGINS / "ptp", {"type": "ptp", "ipam": ipam}, node.namespaces.entrance)


@contextmanager
def chained_station(world: World) -> Iterator[Station]:
    """One more node in the world, ready; gone with the context, and its pods before."""
    versions = world.description.families.value
    with world.another_station(NAME, "--enable-ipam=false") as station:
        station.runtime = ChainedRuntime(ptp(station.wired, versions), station.coil)
        # The administrator's part, as no routing daemon is here: pods' networks, and the way beyond the cluster.
        for via in world.description.families.pick(station.ipv4, station.ipv6):
            for other in world.stations[:-1]:
                other.route(SUBNETS[via.version], via=str(via))
            world.external.route(SUBNETS[via.version], via=str(via))
        for via in world.external.links:
            station.route(NETWORKS[via.version], via=str(via))
        yield station
