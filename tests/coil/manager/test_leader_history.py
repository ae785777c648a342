"""The leader election in random histories of everything that can go wrong at once. The seed says all of it.

`Election` fails the test at any instant at which two contenders are at work.
"""

import random
from collections.abc import Iterator

import pytest

from coil.kube.errors import ConflictError
from tests.coil.manager.election import Election, Work
from tests.coil.manager.lease_server import (
    ANSWER_LOST,
    BROKEN_AFTERWARDS,
    REFUSED,
    REQUEST_LOST,
    Fate,
)


@pytest.fixture
def election() -> Iterator[Election]:
    election = Election()
    yield election
    election.close()


class Trouble:
    """Random fates and blows until `calm`; the seed says all of it."""

    def __init__(self, election: Election, seed: int, *, calm: float) -> None:
        self.election = election
        self.random = random.Random(seed)
        self.calm = calm
        self.born = 0
        self.severity = self.random.choice([0.05, 0.2, 0.5])
        for _ in range(self.random.choice([2, 2, 3])):
            self.give_birth()
        self._schedule()

    def give_birth(self) -> None:
        self.born += 1
        work = Work(
            interval=self.random.uniform(0.05, 1.0),
            cleanup=self.random.choice([0.0, 0.5, 2.0, 3.9, 3.9, 6.0]),
            lasts=self.random.choice([float("inf"), float("inf"), 30.0]),
        )
        self.election.contender(f"p{self.born}", work=work, network=self.fate, rate=self.random.uniform(0.98, 1.02))

    def fate(self, _call: str) -> Fate:
        if self.election.universe.now > self.calm or self.random.random() > self.severity:
            return Fate(request=self.random.uniform(0.001, 0.1), answer=self.random.uniform(0.001, 0.1))
        slow = self.random.uniform(0, 20)
        return self.random.choice(
            [
                REQUEST_LOST,
                ANSWER_LOST,
                REFUSED,
                BROKEN_AFTERWARDS,
                Fate(request=slow),
                Fate(answer=slow),
                Fate(error=ConflictError("so they say", status=409), applied=False),
                Fate(error=ConflictError("applied, and asked again by a proxy", status=409)),
            ]
        )

    def _schedule(self) -> None:
        when = self.election.universe.now + self.random.expovariate(1 / 8)
        if when < self.calm:
            self.election.universe.at(when, self._strike)

    def _strike(self) -> None:
        victims = [each for each in self.election.contenders if each.loop.alive and not each.task.done()]
        victim = self.random.choice(victims) if victims else None
        blow = self.random.choice(["suspend", "block", "kill", "stop", "birth", "note"])
        length = self.random.choice([1.0, 6.0, 11.0, 13.0, 14.2, 16.0, 40.0]) * self.random.uniform(0.9, 1.1)
        match blow:
            case "suspend" if victim and not victim.loop.suspended:
                victim.suspend(length)
            case "block" if victim and not victim.loop.suspended:
                victim.block(length)
            case "kill" if victim:
                victim.kill()
            case "stop" if victim:
                victim.stop()
            case "birth" if len(victims) < 4:
                self.give_birth()
            case "note" if self.election.server.lease is not None:
                self.election.server.edit(annotation=str(self.election.universe.now))
        self._schedule()


@pytest.mark.parametrize("seed", range(60))
def test_in_no_history_are_two_at_work(election: Election, seed: int) -> None:
    trouble = Trouble(election, seed, calm=300.0)
    election.run(340.0)
    trouble.give_birth()
    trouble.election.contenders[-1].work.lasts = float("inf")
    election.run(80.0)
    assert sum(contender.running for contender in election.contenders) == 1, "in calm, somebody leads"
    for contender in election.contenders:
        assert not contender.loop.errors
