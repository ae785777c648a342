"""While its annotation stands, a pod never reaches the world by another way than its Egresses: random lives of pods.

A failure names the seed: `COIL_HISTORY=17` plays that history alone. `COIL_HISTORIES` is how many the long test plays.
"""

import secrets
from os import environ

import pytest

from integration.egress.history import History, Outcome
from integration.egress.world import World

pytestmark = pytest.mark.kernel

FEW = 3
MANY = int(environ.get("COIL_HISTORIES", "25"))


def play(world: World, count: int) -> None:
    """Each of these lives, unless one is named; in each, the pod sends in the end."""
    if "COIL_HISTORY" in environ:
        seeds = [int(environ["COIL_HISTORY"])]
    else:
        seeds = [secrets.randbelow(1_000_000) for _ in range(count)]
    outcomes: list[Outcome] = []
    for seed in seeds:
        outcomes.append(History(world, seed).play())
        print(outcomes[-1], flush=True)
    assert [str(outcome) for outcome in outcomes if outcome.leaked] == []


def test_a_few_lives(world: World) -> None:
    play(world, FEW)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_lives(world: World) -> None:
    play(world, MANY)


@pytest.mark.slow
def test_these_lives_show_it_where_coild_fails_open(world: World) -> None:
    """The capture would see it."""
    with world.stations[0].coild_with("--egress-fail-open"), world.stations[1].coild_with("--egress-fail-open"):
        leaked = 0
        for seed in range(20):
            leaked += len(History(world, seed, mortal=False).play().leaked)
            if leaked:
                return
    raise AssertionError("20 histories in which nothing was seen")
