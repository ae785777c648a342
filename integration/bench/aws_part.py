"""The figures of addresses of elastic network interfaces that come out of simulations: nodes with the product's store
and provisioner, in virtual time, on an EC2 in memory (`tests/coild/eni/simulation`).

They depend on seeds and not on the machine, so one run each is enough. What the simulations promise beside the numbers
(no address twice, nothing in use taken away, no interface left behind) is asserted while they run.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from integration.bench.figure import Figure, Reading
from integration.bench.part import Part
from integration.bench.sample import median, percentile, spread
from tests.coil.aws.faults import Call
from tests.coild.eni.simulation.churn import ChurnResult, Weather, draw_runs, play, play_thresholds
from tests.coild.eni.simulation.fleet import PODS, FleetResult, FleetWorld, least_seconds
from tests.coild.eni.simulation.fresh_node import CHAIN_FIFTY, CHAIN_FIRST, LATENCY, TYPE, start_with_pods
from tests.coild.virtual_loop import VirtualLoop

T = TypeVar("T")

CALLS = Figure("aws.ec2_calls_per_100_pods", "calls", peer="the proposal's algorithm as written")
FIRST = Figure("aws.first_address_s", "s")
FIFTY = Figure("aws.fifty_pods_s", "s")
RATE = Figure("aws.scale_2000.calls_per_s", "1/s")
WAIT = Figure("aws.scale_2000.worst_wait_s", "s")
REFUSED = Figure("aws.scale_2000.refused_ratio", "")

_PODS = 1000
_NODES = 3
_SEEDS = range(5)
_FLEET = 2000
_AT_ONCE = 200
_PAUSE = 5.0


def measure_calls(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """The same churn on ours and on the proposal's algorithm, for each seed."""
    ours: list[ChurnResult] = []
    theirs: list[list[Call]] = []
    for seed in _SEEDS:
        runs = draw_runs(seed, _PODS, nodes=_NODES)
        with _folder() as folder:
            ours.append(_simulate(play(folder, seed=seed, runs=runs)))
        theirs.append(_simulate(play_thresholds(runs, seed=seed, nodes=_NODES, weather=Weather())))
    calls = [100 * len(each.calls) / _PODS for each in ours]
    fewest = [len(each.calls) / each.fewest_calls for each in ours]
    describing = [_share_of_descriptions(each.calls) for each in ours]
    yield Reading(
        figure=CALLS,
        value=median(calls),
        peer_value=median(100 * len(each) / _PODS for each in theirs),
        runs=len(ours),
        note=f"{_PODS} pods in waves on {_NODES} nodes of 3 interfaces with 10 addresses, cooldown 30 s, 30 % of calls "
        f"refused, latency 2 s, metadata 30 s old, processes killed {sum(each.kills for each in ours)} times in all; "
        f"describing and refused calls count; {spread(fewest)} times the fewest of any schedule that knows the trace; "
        f"{median(describing):.0%} of ours describe; runs {spread(calls)}",
    )


def measure_start(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """A node's first process, until its pods have addresses."""
    for figure, count, chain in ((FIRST, 1, CHAIN_FIRST), (FIFTY, 50, CHAIN_FIFTY)):
        with _folder() as folder:
            seconds = _simulate(start_with_pods(folder, count))
        yield Reading(
            figure=figure,
            value=seconds,
            runs=1,
            note=f"virtual time, {TYPE}, {LATENCY} s for each call; the shortest chain of calls takes {chain:.1f} s",
        )


def measure_fleet(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """A cold start of all nodes, and a restart of all processes, within an account's documented limits."""
    with _folder() as folder:
        cold, restart = _simulate(_take_fleet(folder))
    least = least_seconds("AssignPrivateIpAddresses", _FLEET)
    yield Reading(
        figure=RATE,
        value=cold.calls_per_s,
        runs=1,
        note=f"cold start of {_FLEET} nodes within a minute, until all have what they want, {cold.seconds:.0f} s; "
        f"restart of all processes, {_AT_ONCE} at once: {restart.calls_per_s:.3g}/s; limits of the EC2 Developer "
        "Guide, 'Request throttling'",
    )
    yield Reading(
        figure=WAIT,
        value=cold.worst_wait,
        runs=1,
        note=f"of {PODS} pods on each node, from its start; EC2 grants {_FLEET} assignments in {least:.0f} s; "
        f"p90 {percentile(cold.waits, 90):.0f} s; after a restart {restart.worst_wait:.2g} s",
    )
    yield Reading(
        figure=REFUSED,
        value=cold.refused_ratio,
        runs=1,
        note=f"cold start: {_describe_refusals(cold)}; restart {restart.refused_ratio:.2g}",
    )


async def _take_fleet(folder: Path) -> tuple[FleetResult, FleetResult]:
    world = FleetWorld(directory=folder, size=_FLEET)
    cold = await world.start_cold()
    restart = await world.restart(at_once=_AT_ONCE, pause=_PAUSE)
    await world.end()
    return cold, restart


def _describe_refusals(result: FleetResult) -> str:
    refused = Counter(call.action for call in result.calls if call.error)
    return ", ".join(f"{count} of {action}" for action, count in refused.most_common(3)) or "none"


def _share_of_descriptions(calls: Collection[Call]) -> float:
    return sum(call.action.startswith("Describe") for call in calls) / len(calls)


def _simulate(script: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(script)


@contextmanager
def _folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="coil-bench-eni-") as folder:
        yield Path(folder)


PARTS = (
    Part("aws.calls", (CALLS,), measure_calls),
    Part("aws.start", (FIRST, FIFTY), measure_start),
    Part("aws.scale", (RATE, WAIT, REFUSED), measure_fleet),
)
