"""The gate: bounds on running and waiting calls, time, and the end."""

import asyncio
from collections.abc import Awaitable

import pytest

from coil.cnirpc.call_gate import CallGate, CallLimits
from coil.cnirpc.error import CniError, CniErrorCode
from tests.coil.cnirpc.scripted_service import settled


class Crowd:
    """Calls that stay inside until the test lets them go."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.leave = asyncio.Event()

    async def call(self) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.leave.wait()
        finally:
            self.running -= 1


async def refused(awaitable: Awaitable[None]) -> CniErrorCode:
    with pytest.raises(CniError) as raised:
        await awaitable
    return raised.value.code


async def test_so_many_run_so_many_wait_and_the_rest_is_refused() -> None:
    gate, crowd = CallGate(CallLimits(running=2, queued=3)), Crowd()
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(gate.run(crowd.call))
        await settled(lambda: crowd.running == 2)
        assert await refused(gate.run(crowd.call)) is CniErrorCode.TRY_AGAIN_LATER
        crowd.leave.set()
    assert (crowd.running, crowd.most) == (0, 2)
    await gate.run(crowd.call)  # there is room again


async def test_closed_it_refuses_and_lets_those_inside_finish() -> None:
    gate, crowd = CallGate(CallLimits()), Crowd()
    task = asyncio.create_task(gate.run(crowd.call))
    await settled(lambda: crowd.running == 1)
    gate.close()
    assert gate.closed
    assert await refused(gate.run(crowd.call)) is CniErrorCode.TRY_AGAIN_LATER
    assert await gate.wait_empty(0.001) == 1
    crowd.leave.set()
    await task
    assert await gate.wait_empty(10) == 0


async def test_an_unbounded_call_is_bounded_here() -> None:
    gate, crowd = CallGate(CallLimits(seconds=0.001)), Crowd()
    assert await refused(gate.run(crowd.call)) is CniErrorCode.TRY_AGAIN_LATER
    assert (crowd.running, await gate.wait_empty(10)) == (0, 0)


async def test_a_timeout_of_the_call_itself_is_its_own() -> None:
    async def call() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await CallGate(CallLimits()).run(call)


async def test_a_cancelled_call_leaves_its_place() -> None:
    gate, crowd = CallGate(CallLimits(running=1, queued=1)), Crowd()
    running = asyncio.create_task(gate.run(crowd.call))
    waiting = asyncio.create_task(gate.run(crowd.call))
    await settled(lambda: crowd.running == 1)
    for task in (waiting, running):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (crowd.running, await gate.wait_empty(10)) == (0, 0)
    crowd.leave.set()
    await gate.run(crowd.call)


async def test_calls_can_be_ended_before_their_time() -> None:
    gate, crowd = CallGate(CallLimits(running=1)), Crowd()
    calls = [asyncio.create_task(gate.run(crowd.call)) for _ in range(3)]
    await settled(lambda: crowd.running == 1)
    gate.close()
    gate.expire()
    for call in calls:
        assert await refused(call) is CniErrorCode.TRY_AGAIN_LATER
    assert (crowd.running, await gate.wait_empty(10)) == (0, 0)
    gate.expire()
