"""Marks: idempotent, in order, and kept until somebody takes them."""

import asyncio

from coil.crd.names import BlockName, PoolName
from coild.addresses.pool_changes import PoolChanges

DEFAULT, SECOND = PoolName("default"), PoolName("second")
ZERO = BlockName("default-0")


async def test_marks_are_kept_while_nobody_waits_and_handed_out_once_in_order() -> None:
    changes = PoolChanges()
    for pool in (SECOND, DEFAULT, SECOND):
        changes.mark(pool)
    changes.mark_emptied(ZERO)
    changes.mark_emptied(ZERO)
    await changes.wait()
    assert changes.take() == ([SECOND, DEFAULT], [ZERO])
    assert changes.take() == ([], [])


async def test_a_waiter_wakes_in_the_next_turn_of_the_loop_and_once_for_any_number_of_marks() -> None:
    changes = PoolChanges()
    woken: list[tuple[list[PoolName], list[BlockName]]] = []

    async def work() -> None:
        while True:
            await changes.wait()
            woken.append(changes.take())

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    changes.mark(DEFAULT)
    changes.mark(SECOND)
    changes.mark_emptied(ZERO)
    assert woken == []
    await asyncio.sleep(0)
    assert woken == [([DEFAULT, SECOND], [ZERO])]
    task.cancel()


async def test_a_cancelled_waiter_takes_nothing() -> None:
    changes = PoolChanges()
    task = asyncio.create_task(changes.wait())
    await asyncio.sleep(0)
    changes.mark(DEFAULT)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert changes.take() == ([DEFAULT], [])
