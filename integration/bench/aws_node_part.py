"""The figures of a node whose pods have addresses of network interfaces: ADD beside the same from pools, and memory.

Real plugin, coild, kernel and API server on both sides; EC2 and the metadata service are the tests'. Most of the
primary interface's pods need nothing of the kernel that a pod of a pool does not need, so it is full before the first
ADD that counts: each of these is for a pod of another interface, with a rule of its own.
"""

from collections.abc import Collection, Iterator, Sequence

from integration.bench.add_rounds import AddRun, fill, read_adds, take_runs
from integration.bench.coil_side import CoilSide
from integration.bench.coild_module import PLAIN
from integration.bench.eni_side import ADDRESSES_OF_INTERFACE, TYPE, EniSide
from integration.bench.figure import Figure, Reading
from integration.bench.part import Part
from integration.bench.pod_namespace import pod_namespaces
from integration.bench.room import require_room

ADD = Figure("aws.add_ms.warm", "ms", peer="ADD from pools")
RSS = Figure("aws.coild.rss_mb", "MB")

_PODS = 110  # as many as a kubelet takes
_RESTING = ADDRESSES_OF_INTERFACE
_INTERFACES = 3
_WARM = _INTERFACES * ADDRESSES_OF_INTERFACE


class MisplacedError(Exception):
    """What was measured is not what the figure promises."""


def measure_node(wanted: Collection[Figure]) -> Iterator[Reading]:
    """The instance beside a node with a pool, each with its own API server, in one kernel."""
    require_room()
    with pod_namespaces(_PODS) as namespaces, EniSide() as ours, CoilSide() as peer:
        peer.restart_coild(module=PLAIN)
        if ADD in wanted:
            # No more than these can be had: what cools down is not replaced, and EC2 is asked for nothing.
            limits = (f"--max-eni={_INTERFACES}", f"--minimum-ip-target={_WARM}", "--cooling=1s")
            ours.start_coild(*limits, warm=_WARM)
            yield _measure_adds(ours, peer, namespaces.paths)
        if RSS in wanted:
            ours.start_coild(f"--minimum-ip-target={_PODS}", warm=_PODS)
            yield _measure_memory(ours, peer, namespaces.paths)


def _measure_adds(ours: EniSide, peer: CoilSide, paths: Sequence[str]) -> Reading:
    def check(run: AddRun) -> None:
        if not all(ours.device_of(address) for address in run.addresses):
            raise MisplacedError("a pod has an address of the primary interface")

    asked = ours.changes_asked()
    runs = take_runs(ours, peer, paths, resting=_RESTING, check=check)
    if (now := ours.changes_asked()) != asked:
        raise MisplacedError(f"EC2 was asked for {now - asked} changes while ADDs were measured")
    about = f"pods of a secondary interface of {TYPE} with {_RESTING} pods at rest on its primary one"
    return read_adds(ADD, *runs, about=about)


def _measure_memory(ours: EniSide, peer: CoilSide, paths: Sequence[str]) -> Reading:
    """One after the other, as both take all namespaces."""
    resident, proportional = fill(ours, ours.pid, paths)
    pools, _ = fill(peer, peer.coild.pid, paths)
    return Reading(
        figure=RSS,
        value=resident,
        runs=1,
        note=f"VmRSS after {len(paths)} ADDs, IPv4, on {TYPE} (Pss {proportional:.1f}); with pools {pools:.1f}",
    )


PART = Part("aws.node", (ADD, RSS), measure_node)
