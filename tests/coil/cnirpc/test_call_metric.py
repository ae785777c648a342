"""What a scrape sees of calls, over a real socket."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from grpclib.client import Channel
from grpclib.exceptions import GRPCError
from prometheus_client import CollectorRegistry

from coil.cnirpc.call_gate import CallLimits
from coil.cnirpc.call_metric import CallMetrics
from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import CniArgs, CniStub
from coil.cnirpc.server import serve_cni
from tests.coil.cnirpc.scripted_service import ScriptedService, settled

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
        for reason in ("busy", "stopping", "late"):
            assert scene.refused(reason) == 0


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (CniError(CniErrorCode.TRY_AGAIN_LATER, "no address"), "TRY_AGAIN_LATER"),
        (CniError(CniErrorCode.UNKNOWN_CONTAINER, "who?"), "UNKNOWN_CONTAINER"),
        (RuntimeError("a defect"), "INTERNAL"),
    ],
)
async def test_an_operation_is_counted_with_its_outcome(scene: Scene, error: Exception | None, outcome: str) -> None:
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
        await settled(lambda: scene.count("DEL", "cancelled") == 1)
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
