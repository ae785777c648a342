"""The scale figures: one ipam-controller for 2 000 nodes, its start with 20 000 blocks, and what a node must listen to.

All against a real kube-apiserver and etcd, with the programs under their own service accounts. Each part has a control
plane of its own; its nodes are objects without kubelets, as big as real ones.
"""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from coil.crd.names import PoolName
from integration.bench.figure import Figure, Reading
from integration.bench.ipam_round import Round, take_our_round, take_peer_round
from integration.bench.ipam_stage import open_stage
from integration.bench.ipam_traffic import measure_traffic
from integration.bench.part import Part
from integration.bench.process_state import resident_megabytes
from integration.bench.room import require_room
from integration.bench.sample import median, spread

BLOCKS = Figure("ipam.blocks_2000_nodes.seconds", "s", peer="the same writes by a bare client")
RSS = Figure("ipam.controller.rss_mb", "MB")
RESTART = Figure("ipam.controller_restart_20k_blocks.seconds", "s")
WATCH = Figure("ipam.watch_bytes_per_node", "bytes")

_NODES = 2000
_BLOCKS = 20_000
_ROUNDS = 5
_RESTARTS = 5
_NAMESPACES = 500
_REAP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Load:
    """What a controller was like with many blocks: seconds of each start, and the round that followed."""

    starts: list[float]
    idle_mb: float
    round: Round


async def take_rounds(*, nodes: int, rounds: int) -> tuple[list[Round], list[float]]:
    """Rounds of ours and of the peer's in alternation, after one of each that is not counted."""
    ours: list[Round] = []
    theirs: list[float] = []
    async with open_stage(nodes=nodes) as stage:
        for number in range(rounds + 1):
            ours.append(await take_our_round(stage, PoolName(f"ours-{number}"), f"10.{2 * number}.0.0/16"))
            theirs.append(await take_peer_round(stage, PoolName(f"peer-{number}"), f"10.{2 * number + 1}.0.0/16"))
    return ours[1:], theirs[1:]


async def take_load(*, nodes: int, blocks: int, restarts: int) -> Load:
    """Starts with that many blocks, each but the first after a kill -9; then a round on top of them."""
    async with open_stage(nodes=nodes) as stage:
        old = await stage.add_pool(PoolName("old"), "10.128.0.0/10")
        await stage.add_old_blocks(old, blocks)
        starts, idle = [], 0.0
        for _ in range(restarts):
            controller, seconds = await stage.start_controller()
            starts.append(seconds)
            idle = resident_megabytes(controller.pid, "VmRSS")
            controller.kill()
            controller.wait(_REAP_SECONDS)
        return Load(starts, idle, await take_our_round(stage, PoolName("new"), "10.0.0.0/16"))


def measure_blocks(_wanted: Collection[Figure]) -> Iterator[Reading]:
    ours, theirs = asyncio.run(take_rounds(nodes=_NODES, rounds=_ROUNDS))
    seconds = [round_.seconds for round_ in ours]
    yield Reading(
        figure=BLOCKS,
        value=median(seconds),
        peer_value=median(theirs),
        runs=len(ours),
        note=f"from the lease to the last answer, all {_NODES} requests waiting; runs {spread(seconds)} against "
        f"{spread(theirs)}; at most {max(round_.peak_mb for round_ in ours):.0f} MB resident",
    )


def measure_controller(_wanted: Collection[Figure]) -> Iterator[Reading]:
    load = asyncio.run(take_load(nodes=_NODES, blocks=_BLOCKS, restarts=_RESTARTS))
    yield Reading(
        figure=RSS,
        value=load.round.peak_mb,
        runs=1,
        note=f"the most that was resident (VmHWM) from the start on, with {_BLOCKS} blocks and {_NODES} nodes, until "
        f"each node had got one more; {load.round.rss_mb:.0f} MB then, {load.idle_mb:.0f} MB when ready",
    )
    yield Reading(
        figure=RESTART,
        value=median(load.starts),
        runs=len(load.starts),
        note=f"exec to /readyz 200, {_NODES} nodes, after kill -9; runs {spread(load.starts)}",
    )


def measure_watch(_wanted: Collection[Figure]) -> Iterator[Reading]:
    require_room()
    traffic = asyncio.run(measure_traffic(nodes=_NODES, namespaces=_NAMESPACES))
    yield Reading(figure=WATCH, value=traffic.churn, runs=1, note=traffic.describe())


PARTS = (
    Part("ipam.blocks", (BLOCKS,), measure_blocks),
    Part("ipam.controller", (RSS, RESTART), measure_controller),
    Part("ipam.watch", (WATCH,), measure_watch),
)
