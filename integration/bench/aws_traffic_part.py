"""The path between pods on secondary interfaces of two nodes, compared with the path between the nodes themselves.

    pod  ── node-0 eth1 ── router ── node-1 eth1 ── pod         rule and table of the interface, both ways
            node-0 eth0 ── router ── node-1 eth0                the nodes' primary addresses

The real coild has wired the pods; the router is that of the tests' VPC, which does the same for each packet. A pod's
packets cross two links and two kernels' forwarding more, which is what the ratios tell of.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from ipaddress import IPv4Address
from pathlib import Path

from integration.apiserver.plane_pool import PlanePool
from integration.aws.world import FLAGS, EniWorld
from integration.bench.egress_path import TrafficPath
from integration.bench.egress_server import serving_in
from integration.bench.figure import Better, Figure, Reading
from integration.bench.part import Part
from integration.bench.path_rounds import PathRound, PathRounds, take_rounds
from integration.bench.room import require_room
from integration.bench.sample import median, paired_ratios, percentile, spread

_PEER = "the same path between node addresses"
THROUGHPUT = Figure("aws.throughput", "Gbit/s", Better.HIGHER, peer=_PEER)
RTT_P50 = Figure("aws.rtt_ms.p50", "ms", peer=_PEER)
RTT_P99 = Figure("aws.rtt_ms.p99", "ms", peer=_PEER)

_PODS, _NODES = "pods", "nodes"
_SECONDARY = 1
_MIDDLE = 50
_ROUNDS = 25
"""Many and short: whatever else the machine does then falls on both paths alike."""
_DATAGRAMS = 200


def measure_traffic(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """Both paths in turns, in one kernel."""
    require_room()
    with ExitStack() as stack:
        plane = stack.enter_context(stack.enter_context(PlanePool()).lend())
        world = stack.enter_context(EniWorld.up(plane))
        pods = []
        for node in world.nodes:
            stack.enter_context(node.running_coild(*FLAGS))
            pods.append(node.pods_on(_SECONDARY)[0])
        near, far = world.nodes
        ends = {
            _PODS: (Path(pods[0].sandbox.netns), Path(pods[1].sandbox.netns), IPv4Address(pods[1].address)),
            _NODES: (near.namespaces.net, far.namespaces.net, far.instance.primary),
        }
        for _, served, address in ends.values():
            stack.enter_context(serving_in(served, address))
        paths = [TrafficPath(name=name, netns=asking, target=target) for name, (asking, _, target) in ends.items()]
        yield from read_traffic(take_rounds(paths, rounds=_ROUNDS, datagrams=_DATAGRAMS))


def read_traffic(rounds: PathRounds) -> Iterator[Reading]:
    """The figures of the rounds. Pure."""
    ours, peer = rounds.taken[_PODS], rounds.taken[_NODES]
    up, peer_up = ([each.upload_gbits for each in side] for side in (ours, peer))
    down, peer_down = (median(each.download_gbits for each in side) for side in (ours, peer))
    yield Reading(
        figure=THROUGHPUT,
        value=median(up),
        peer_value=median(peer_up),
        runs=len(ours),
        note=f"TCP, from a pod of a secondary interface to one on another node, {rounds.megabytes} MB a round, MTU of "
        f"the interfaces on both paths; runs {spread(up)} against {spread(peer_up)}; neighbouring runs have the ratio "
        f"{median(paired_ratios(up, peer_up)):.2f}; the other direction {down / peer_down:.2f}",
    )
    yield _read_trips(RTT_P50, ours, peer, percent=_MIDDLE)
    yield _read_trips(RTT_P99, ours, peer, percent=99)


def _read_trips(figure: Figure, ours: Sequence[PathRound], peer: Sequence[PathRound], *, percent: float) -> Reading:
    single, peer_single = ([percentile(each.trips_ms, percent) for each in side] for side in (ours, peer))
    # A percentile that is rare is one of all single datagrams, as no round has enough of them.
    value, peer_value = (
        (median(single), median(peer_single))
        if percent == _MIDDLE
        else (percentile(_trips(ours), percent), percentile(_trips(peer), percent))
    )
    return Reading(
        figure=figure,
        value=value,
        peer_value=peer_value,
        runs=len(ours),
        note=f"UDP, 64 bytes there and back, {len(_trips(ours))} a path in all, with the programs at both ends; runs "
        f"{spread(single)} against {spread(peer_single)}; neighbouring runs have the ratio "
        f"{median(paired_ratios(single, peer_single)):.2f}",
    )


def _trips(rounds: Collection[PathRound]) -> list[float]:
    return [trip for each in rounds for trip in each.trips_ms]


PART = Part("aws.traffic", (THROUGHPUT, RTT_P50, RTT_P99), measure_traffic)
