"""Pods come and go in waves on three nodes, while EC2 refuses a third of the calls and is slow, metadata is old, and
coild is killed at random: no address is had twice or before it has cooled down, none is taken from a pod, every pod is
routed all the time, and nothing is left of any of it.

A small one here; a thousand pods with `nox -s timing -- integration/aws`, which writes build/aws_churn.json.
COIL_CHURN_PODS=<number> makes that one shorter or longer.
"""

import asyncio
import json
import os
import secrets
import sys
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from coil.eni.surplus import SURPLUS_SECONDS
from coil.eni.warm_pool import WarmTargets
from integration.aws.churn.run import Churn, ChurnPlan, ChurnReport
from integration.aws.world import EniWorld
from integration.cluster.control_plane import ControlPlane
from tests.coild.eni.simulation.churn import LIMITS, TYPE, ChurnResult, ChurnWorld, Weather
from tests.coild.eni.simulation.trace import COOLDOWN, Waves
from tests.coild.virtual_loop import VirtualLoop

pytestmark = pytest.mark.apiserver

NODES: Final = 3
SUBNETS: Final = ("10.1.0.0/25",)
"""One for all, and so small that what one node gives back another one gets."""
SOON_GIVEN_BACK: Final = WarmTargets(ips=2, minimum=4)
PODS: Final = int(os.environ.get("COIL_CHURN_PODS") or 1000)
REPORT: Final = Path(__file__).resolve().parents[2] / "build" / "aws_churn.json"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")


def draw_seed() -> int:
    """COIL_SEED has the same pods and the same kills drawn again, though not the same interleaving."""
    seed = os.environ.get("COIL_SEED") or str(secrets.randbelow(1_000_000))
    print(f"COIL_SEED={seed}")
    return int(seed)


def play(world: EniWorld, plan: ChurnPlan) -> ChurnReport:
    """All of it."""
    churn = Churn(world=world, plan=plan, limits=LIMITS)
    try:
        report = churn.play()
        churn.rest()
        asyncio.run(churn.lose())
        churn.end()
    except BaseException as error:
        for name, text in world.logs():
            error.add_note(f"--- {name}\n{text}")
        raise
    assert len(report.waits) == len(plan.runs)
    assert report.kills >= NODES
    assert report.refused
    return report


def simulate(plan: ChurnPlan, folder: Path) -> ChurnResult:
    """The same in virtual time."""
    assert plan.cooldown == COOLDOWN

    async def script() -> ChurnResult:
        world = ChurnWorld(
            directory=folder, seed=plan.seed, weather=plan.weather, targets=plan.targets, unneeded=plan.unneeded
        )
        return await world.play(plan.runs)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(script())


@pytest.mark.slow
def test_sixty_pods(plane: ControlPlane) -> None:
    seed = draw_seed()
    waves = Waves(nodes=NODES, sizes=(6, 10), spread=2.0, seconds=(1.0, 4.0), gaps=(7.0, 9.0))
    plan = ChurnPlan(
        seed=seed,
        runs=waves.draw(Random(seed), pods=60),
        weather=Weather(latency=0.3, metadata_lag=5.0, lives=(3.0, 12.0), downtimes=(0.0, 1.0)),
        targets=WarmTargets(ips=1),
        cooldown=6.0,
        unneeded=1.0,
        sweep=3.0,
    )
    with EniWorld.up(plane, nodes=NODES, instance_type=TYPE, subnets=SUBNETS) as world:
        report = play(world, plan)
    print(report)


@pytest.mark.timing
@pytest.mark.timeout(3600)  # six minutes of waves and cooldowns on a fast machine, and COIL_CHURN_PODS makes it longer
@pytest.mark.parametrize(
    ("targets", "unneeded"),
    [(WarmTargets(), SURPLUS_SECONDS), (SOON_GIVEN_BACK, 5.0)],
    ids=["whole interfaces", "few addresses"],
)
def test_a_thousand_pods(
    plane: ControlPlane, targets: WarmTargets, unneeded: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = draw_seed()
    waves = Waves(nodes=NODES, sizes=(12, 27), spread=6.0, seconds=(3.0, 15.0), gaps=(28.0, 44.0))
    plan = ChurnPlan(
        seed=seed,
        runs=waves.draw(Random(seed), pods=PODS),
        weather=Weather(detaching=0.0, lives=(15.0, 90.0)),
        targets=targets,
        cooldown=COOLDOWN,
        unneeded=unneeded,
        sweep=30.0,
    )
    with EniWorld.up(plane, nodes=NODES, instance_type=TYPE, subnets=SUBNETS) as world:
        report = play(world, plan)
    tell(request.node.callspec.id, report, simulate(plan, tmp_path))
    assert report.reused
    if targets == SOON_GIVEN_BACK:
        assert report.given_back


def tell(name: str, report: ChurnReport, simulated: ChurnResult) -> None:
    """On standard error and in a file."""
    print(f"\n{name}: {report}", file=sys.stderr)
    virtual = 100 * len(simulated.calls) / report.pods
    print(f"in virtual time: {virtual:.1f} calls for 100 pods, {simulated.kills} kills", file=sys.stderr)
    figures: dict[str, Any] = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    figures[name] = {
        "pods": report.pods,
        "seconds": round(report.seconds),
        "kills": report.kills,
        "ec2_calls_per_100_pods": round(report.calls_per_100_pods, 1),
        "ec2_calls_per_100_pods in virtual time": round(virtual, 1),
        "longest wait": round(max(report.waits), 1),
    }
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(figures, indent=2) + "\n")
