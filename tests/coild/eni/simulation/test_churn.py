"""Pods come and go in waves where EC2 refuses a third of the calls and takes seconds for each, metadata is old, and
processes are killed: no address is had twice, nothing in use is taken away, no interface is left behind.

The full size runs with `nox -s aws_simulation`.
"""

import asyncio
from pathlib import Path
from random import Random

import pytest

from coil.eni.warm_pool import WarmTargets
from tests.coild.eni.simulation.churn import LIMITS, ChurnWorld, Weather, draw_runs, play, play_thresholds
from tests.coild.eni.simulation.trace import COOLDOWN, PodRun, Waves, fewest_changes, peak_demand
from tests.coild.virtual_loop import VirtualLoop

STORM = Weather(throttled=0.5, latency=5.0, metadata_lag=300.0, lives=(5.0, 60.0))


@pytest.mark.parametrize("seed", range(3))
async def test_a_hundred_pods(tmp_path: Path, seed: int) -> None:
    result = await ChurnWorld(directory=tmp_path, seed=seed).play(draw_runs(seed, 100))
    assert len(result.waits) == 100


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "targets", [WarmTargets(ips=2), WarmTargets(ips=0, minimum=6), WarmTargets(interfaces=0)], ids=str
)
async def test_other_targets_and_a_storm(tmp_path: Path, seed: int, targets: WarmTargets) -> None:
    world = ChurnWorld(directory=tmp_path, seed=seed, weather=STORM, targets=targets)
    result = await world.play(draw_runs(seed, 100))
    assert len(result.waits) == 100
    assert result.kills > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_thousand_pods_cost_few_calls(tmp_path: Path, seed: int) -> None:
    runs = draw_runs(seed, 1000)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(play(tmp_path, seed=seed, runs=runs))
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        thresholds = runner.run(play_thresholds(runs, seed=seed, nodes=3, weather=Weather()))
    assert len(result.waits) == 1000
    assert result.kills >= 3
    assert len(result.calls) <= 0.5 * len(thresholds)
    assert len(result.calls) <= 1.3 * result.fewest_calls, result.by_action


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
async def test_a_thousand_pods_in_a_storm(tmp_path: Path, seed: int) -> None:
    result = await ChurnWorld(directory=tmp_path, seed=seed, weather=STORM).play(draw_runs(seed, 1000))
    assert len(result.waits) == 1000


class TestTheTrace:
    def test_the_same_seed_gives_the_same_pods(self) -> None:
        assert draw_runs(1, 50) == draw_runs(1, 50) != draw_runs(2, 50)
        assert len({run.number for run in draw_runs(1, 50)}) == 50

    def test_an_address_is_needed_until_it_has_cooled_down(self) -> None:
        def follows(gap: float) -> int:
            return peak_demand([PodRun(0.0, 0, 0, 10.0), PodRun(10.0 + gap, 1, 0, 10.0)])

        assert [follows(0.0), follows(COOLDOWN - 1), follows(COOLDOWN + 1)] == [2, 2, 1]

    @pytest.mark.parametrize(("pods", "calls"), [(1, 1), (9, 1), (10, 4), (18, 4), (19, 7), (27, 7), (40, 7)])
    def test_the_fewest_calls(self, pods: int, calls: int) -> None:
        assert fewest_changes([PodRun(0.0, number, 0, 10.0) for number in range(pods)], LIMITS) == calls

    def test_each_node_has_its_own_calls(self) -> None:
        runs = [PodRun(0.0, number, number % 3, 10.0) for number in range(30)]
        assert fewest_changes(runs, LIMITS) == 3 * 4

    def test_a_wave_is_over_before_the_next(self) -> None:
        runs = Waves(nodes=1, sizes=(3, 3), spread=0.0, seconds=(1.0, 1.0), gaps=(100.0, 100.0))
        starts = [run.start for run in runs.draw(Random(1), pods=7)]
        assert starts == [0.0] * 3 + [100.0] * 3 + [200.0]
