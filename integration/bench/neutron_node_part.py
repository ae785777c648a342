"""The figures of a node whose pods are ports of Neutron: ADD beside the same from pools, and memory.

Real plugin, coild, kernel and API server on both sides. A pod of a port becomes one of a bridge's, and its filter a
chain in the tables of the node.
"""

from collections.abc import Collection, Iterator

from integration.bench.add_rounds import fill, read_adds, take_runs
from integration.bench.coil_side import CoilSide
from integration.bench.coild_module import PLAIN
from integration.bench.figure import Figure, Reading
from integration.bench.part import Part
from integration.bench.pod_namespace import pod_namespaces
from integration.bench.port_side import port_side
from integration.bench.room import require_room

ADD = Figure("neutron.add_ms", "ms", peer="ADD from pools")
RSS = Figure("neutron.coild.rss_mb", "MB")

_PODS = 110  # as many as a kubelet takes
_RESTING = 30


def measure_node(wanted: Collection[Figure]) -> Iterator[Reading]:
    """The node beside one with a pool, each with its own API server, in one kernel."""
    require_room()
    with pod_namespaces(_PODS) as namespaces, port_side() as ours, CoilSide() as peer:
        peer.restart_coild(module=PLAIN)
        if ADD in wanted:
            runs = take_runs(ours, peer, namespaces.paths, resting=_RESTING, check=lambda run: None)
            about = f"pods whose annotation is there, ports of one bridge with {_RESTING} ports at rest"
            yield read_adds(ADD, *runs, about=about)
        if RSS in wanted:
            resident, proportional = fill(ours, ours.pid, namespaces.paths)
            pools, _ = fill(peer, peer.coild.pid, namespaces.paths)
            yield Reading(
                figure=RSS,
                value=resident,
                runs=1,
                note=f"VmRSS after {_PODS} ADDs, IPv4 (Pss {proportional:.1f}); with pools {pools:.1f}",
            )


PART = Part("neutron.node", (ADD, RSS), measure_node)
