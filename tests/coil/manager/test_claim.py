"""A claim's parts that need no election: the contract of its store, its timing, its identity."""

import dataclasses

import pytest

from coil.manager.claim import LeaderTiming, new_identity
from tests.coil.manager.lease_server import LeaseServer, NetworkStore
from tests.coil.reconcile.lease_contract import CHECKS, Check
from tests.coil.reconcile.virtual_time import Universe


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_the_store_of_these_tests_keeps_the_contract(check: Check) -> None:
    universe = Universe()
    server = LeaseServer()
    store = NetworkStore(universe, server)

    async def delete() -> None:
        server.delete()

    async def main() -> None:
        await check(store, delete)

    task = universe.boot("main").create_task(main())
    universe.run(100)
    universe.close()
    task.result()


def test_identities_are_never_the_same() -> None:
    assert len({new_identity() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"renew": 12.0},
        {"grace": 6.0},
        {"grace": 0.0},
        {"retry": -1.0},
        {"call": 4.5},
        {"retry": 5.0},
        {"lease": 13},
    ],
)
def test_periods_that_could_not_keep_the_promise_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        dataclasses.replace(LeaderTiming(), **wrong)  # type: ignore[arg-type]
