"""From what was measured of egress NAT to the figures of the table. Pure."""

from collections.abc import Iterator
from typing import Final

from integration.bench.egress_result import Adds, Crowd, Fill, Result, TrafficPaths
from integration.bench.figure import Better, Figure, Reading
from integration.bench.sample import median, spread

_PEER: Final = "the plain routed path"
THROUGHPUT = Figure("egress.throughput", "Gbit/s", Better.HIGHER, peer=_PEER)
RTT = Figure("egress.rtt_ms", "ms", peer=_PEER)
READY = {count: Figure(f"egress.client_ready_ms.n{count}", "ms") for count in (1, 100, 1000)}
RSS = Figure("egress.agent.rss_mb.n1000", "MB")
CPU = Figure("egress.agent.cpu_ms_per_client.n1000", "ms")
IDLE = Figure("egress.agent.idle_cpu_percent.n1000", "%")

ADD = Figure("cni.add.p50_ms.egress", "ms", peer="a pod without an Egress")

PATH_FIGURES: Final = (THROUGHPUT, RTT)
CROWD_FIGURES: Final = (*READY.values(), RSS, CPU, IDLE)
ADD_FIGURES: Final = (ADD,)
FIGURES: Final = (*PATH_FIGURES, *CROWD_FIGURES, *ADD_FIGURES)


def take_readings(result: Result) -> Iterator[Reading]:
    """Of the sections that were measured."""
    if result.paths is not None:
        yield from _read_paths(result.paths, result.place)
    if result.crowd is not None:
        yield from _read_crowd(result.crowd, result.place)
    if result.adds is not None:
        yield _read_adds(result.adds, result.place)


def _read_paths(paths: TrafficPaths, place: str) -> Iterator[Reading]:
    ours, peer, direct = paths.tunnel, paths.plain, paths.direct
    down = median(ours.download_gbits) / median(peer.download_gbits)
    straight = median(ours.upload_gbits) / median(direct.upload_gbits)
    yield Reading(
        figure=THROUGHPUT,
        value=median(ours.upload_gbits),
        peer_value=median(peer.upload_gbits),
        runs=len(ours.upload_gbits),
        note=f"TCP, pod to outside host, {paths.megabytes} MB a round; the peer goes by the same node and router with "
        f"the same masquerade; runs {spread(ours.upload_gbits)} against {spread(peer.upload_gbits)}; the other "
        f"direction has the ratio {down:.2f}; {straight:.2f} of a pod without an Egress, which has one hop less; "
        f"{place}",
    )
    straight = median(ours.rtt_ms) / median(direct.rtt_ms)
    yield Reading(
        figure=RTT,
        value=median(ours.rtt_ms),
        peer_value=median(peer.rtt_ms),
        runs=len(ours.rtt_ms),
        note=f"UDP, 64 bytes there and back, medians of {paths.datagrams} a round, with the programs at both ends; "
        f"runs {spread(ours.rtt_ms)} against {spread(peer.rtt_ms)}; {straight:.2f} of a pod without an Egress; {place}",
    )


def _read_crowd(crowd: Crowd, place: str) -> Iterator[Reading]:
    for count, figure in READY.items():
        taken = crowd.joined(count)
        yield Reading(
            figure=figure,
            value=median(taken),
            runs=len(taken),
            note=f"API server is told the address of client number {count} → first answer through its tunnel; runs "
            f"{spread(taken)}; {place}",
        )
    yield Reading(
        figure=RSS,
        value=crowd.rss_mb,
        runs=1,
        note=f"VmRSS; the most was {crowd.peak_mb:.1f} (VmHWM), {crowd.pss_mb:.1f} with shared pages divided (Pss), "
        f"{crowd.empty_rss_mb:.1f} without a client; iproute2 counts {crowd.tunnels} tunnels and {crowd.routes} routes",
    )
    cpu = sum(fill.cpu_ms for fill in crowd.fills) / sum(fill.last - fill.first + 1 for fill in crowd.fills)
    yield Reading(
        figure=CPU,
        value=cpu,
        runs=1,
        note=f"the agent's processor time, its calls of the kernel with it, for each client that comes alone: "
        f"{_describe(crowd.fills[0])}, {_describe(crowd.fills[-1])}, in between "
        f"{spread([fill.cpu_ms_per_client for fill in crowd.fills[1:-1]])}; {place}",
    )
    yield Reading(
        figure=IDLE,
        value=crowd.idle_cpu_ms / crowd.idle_seconds / 10,
        runs=1,
        note=f"of one processor, over {crowd.idle_seconds:.0f} s in which nothing happens; {place}",
    )


def _read_adds(adds: Adds, place: str) -> Reading:
    return Reading(
        figure=ADD,
        value=median(adds.client_ms),
        peer_value=median(adds.plain_ms),
        runs=len(adds.client_ms),
        note="one at a time, exec to exit, IPv4; Egress resolved and tunnel made by then; the peer by the "
        f"same coild; medians of {adds.count} ADDs a run, {spread(adds.client_ms)} against "
        f"{spread(adds.plain_ms)}; {place}",
    )


def _describe(fill: Fill) -> str:
    return f"{fill.first} … {fill.last}: {fill.cpu_ms_per_client:.1f} ms"
