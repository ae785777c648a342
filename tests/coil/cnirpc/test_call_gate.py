"""The gate: bounds on running and waiting calls, time, and the end."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from grpclib.client import Channel
from grpclib.exceptions import GRPCError
from prometheus_client import CollectorRegistry

from coil.cnirpc.call_gate import CallGate, CallLimits, CallMetrics
from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import CniArgs, CniStub
from coil.cnirpc.server import serve_cni
from tests.coil.cnirpc.scripted_service import ScriptedService, until


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
        await until(lambda: crowd.running == 2)
        assert await refused(gate.run(crowd.call)) is CniErrorCode.TRY_AGAIN_LATER
        crowd.leave.set()
    assert (crowd.running, crowd.most) == (0, 2)
    await gate.run(crowd.call)  # there is room again


async def test_closed_it_refuses_and_lets_those_inside_finish() -> None:
    gate, crowd = CallGate(CallLimits()), Crowd()
    task = asyncio.create_task(gate.run(crowd.call))
    await until(lambda: crowd.running == 1)
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
    await until(lambda: crowd.running == 1)
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
    await until(lambda: crowd.running == 1)
    gate.close()
    gate.expire()
    for call in calls:
        assert await refused(call) is CniErrorCode.TRY_AGAIN_LATER
    assert (crowd.running, await gate.wait_empty(10)) == (0, 0)
    gate.expire()


LIMITS = CallLimits(running=1, queued=0, seconds=60)


class Scene:
    """A server, its client, and what it tells."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.registry = CollectorRegistry()
        self.metrics = CallMetrics(self.registry)
        self.service = ScriptedService()

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def count(self, operation: str, outcome: str) -> float | None:
        name = "coil_cni_operation_duration_seconds_count"
        return self.value(name, operation=operation, outcome=outcome)

    @property
    def in_flight(self) -> float | None:
        return self.value("coil_cni_operations_in_flight", operation="DEL")

    def started(self, method: str) -> float | None:
        labels = {"grpc_type": "unary", "grpc_service": "pkg.cnirpc.CNI", "grpc_method": method}
        return self.value("grpc_server_started_total", **labels)

    def handled(self, method: str, code: str) -> float | None:
        labels = {"grpc_type": "unary", "grpc_service": "pkg.cnirpc.CNI", "grpc_method": method, "grpc_code": code}
        return self.value("grpc_server_handled_total", **labels)

    def refused(self, reason: str) -> float | None:
        return self.value("coil_cni_refused_operations_total", reason=reason)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "coild.sock")


def raising(error: Exception) -> Callable[[CniArgs], Awaitable[None]]:
    async def script(_: CniArgs) -> None:
        raise error

    return script


async def test_every_operation_has_a_series_before_its_first_call(scene: Scene) -> None:
    async with serve_cni(scene.service, path=scene.path, metrics=scene.metrics):
        for operation in ("ADD", "DEL", "CHECK"):
            assert scene.count(operation, "ok") == 0
            assert scene.value("coil_cni_operations_in_flight", operation=operation) == 0
        for method in ("Add", "Del", "Check"):
            assert (scene.started(method), scene.handled(method, "OK")) == (0, 0)
        for reason in ("busy", "stopping", "late"):
            assert scene.refused(reason) == 0


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (None, "ok", "OK"),
        (CniError(CniErrorCode.TRY_AGAIN_LATER, "no address"), "TRY_AGAIN_LATER", "Unavailable"),
        (CniError(CniErrorCode.UNKNOWN_CONTAINER, "who?"), "UNKNOWN_CONTAINER", "NotFound"),
        (RuntimeError("a defect"), "INTERNAL", "Internal"),
    ],
)
async def test_an_operation_is_counted_with_its_outcome(
    scene: Scene, error: Exception | None, outcome: str, code: str
) -> None:
    if error is not None:
        scene.service.script = raising(error)
    async with (
        serve_cni(scene.service, path=scene.path, metrics=scene.metrics),
        Channel(path=str(scene.path)) as channel,
    ):
        for _ in range(3):
            try:
                await CniStub(channel).check(CniArgs())
            except GRPCError:
                assert error is not None
    assert scene.count("CHECK", outcome) == 3
    total = scene.value("coil_cni_operation_duration_seconds_bucket", operation="CHECK", outcome=outcome, le="+Inf")
    assert total == 3
    assert scene.count("CHECK", "ok") == (3 if error is None else 0)
    assert (scene.started("Check"), scene.handled("Check", code)) == (3, 3)
    assert [scene.refused(reason) for reason in ("busy", "stopping", "late")] == [0, 0, 0], "the service's own answers"


async def test_what_is_under_way_and_what_is_sent_away(scene: Scene) -> None:
    leave = asyncio.Event()

    async def stay(_: CniArgs) -> None:
        await leave.wait()

    scene.service.script = stay
    async with (
        serve_cni(scene.service, path=scene.path, metrics=scene.metrics, limits=LIMITS),
        Channel(path=str(scene.path)) as channel,
    ):
        inside = asyncio.create_task(CniStub(channel).del_(CniArgs()))
        await scene.service.entered.wait()
        assert scene.in_flight == 1
        with pytest.raises(GRPCError):
            await CniStub(channel).del_(CniArgs())
        assert scene.refused("busy") == 1
        assert scene.count("DEL", "TRY_AGAIN_LATER") == 1
        leave.set()
        await inside
    assert scene.in_flight == 0
    assert scene.count("DEL", "ok") == 1


async def test_a_caller_that_goes_is_a_cancellation(scene: Scene) -> None:
    async def stay(_: CniArgs) -> None:
        await asyncio.Event().wait()

    scene.service.script = stay
    async with serve_cni(scene.service, path=scene.path, metrics=scene.metrics):
        async with Channel(path=str(scene.path)) as channel:
            call = asyncio.create_task(CniStub(channel).del_(CniArgs()))
            await scene.service.entered.wait()
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        await until(lambda: scene.count("DEL", "cancelled") == 1)
    assert (scene.started("Del"), scene.handled("Del", "Canceled"), scene.handled("Del", "OK")) == (1, 1, 0)
    assert scene.in_flight == 0


async def test_a_call_that_the_end_of_the_server_meets_is_told_so(scene: Scene) -> None:
    async def stay(_: CniArgs) -> None:
        await asyncio.Event().wait()

    scene.service.script = stay
    async with Channel(path=str(scene.path)) as channel:
        async with serve_cni(scene.service, path=scene.path, metrics=scene.metrics, grace=0.01):
            call = asyncio.create_task(CniStub(channel).del_(CniArgs()))
            await scene.service.entered.wait()
        with pytest.raises(GRPCError):
            await call
    assert scene.refused("stopping") == 1
    assert scene.count("DEL", "TRY_AGAIN_LATER") == 1
