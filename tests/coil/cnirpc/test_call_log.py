"""What the log says of a call that has ended, and under which names."""

import asyncio
from pathlib import Path

import pytest
import structlog
from grpclib.client import Channel
from grpclib.exceptions import GRPCError
from structlog.testing import CapturingLogger
from structlog.typing import EventDict

from coil.cnirpc.call_gate import CallLimits, MeasuredCall
from coil.cnirpc.call_log import CallLog
from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import CniArgs, CniStub
from coil.cnirpc.server import serve_cni
from tests.coil.cnirpc.scripted_service import ScriptedService, scripted, until

POD = CniArgs(
    container_id="c0ffee",
    netns="/run/netns/c0ffee",
    ifname="eth0",
    args={"K8S_POD_NAME": "cart-0", "K8S_POD_NAMESPACE": "shop", "K8S_POD_UID": "1-2-3"},
)
DESCRIBED = {
    "grpc.request.pod.name": "cart-0",
    "grpc.request.pod.namespace": "shop",
    "grpc.request.netns": "/run/netns/c0ffee",
    "grpc.request.ifname": "eth0",
    "grpc.request.container_id": "c0ffee",
}


class Lines:
    """The lines that have been written, with their levels."""

    def __init__(self) -> None:
        self._logger = CapturingLogger()
        self.log = CallLog(structlog.wrap_logger(self._logger, processors=[lambda _, __, event: ((), event)]))

    def __len__(self) -> int:
        return len(self._logger.calls)

    def take(self) -> tuple[str, EventDict]:
        """The only line: its level, and its fields but for the time that it took."""
        [line] = self._logger.calls
        fields = dict(line.kwargs)
        assert 0 <= fields.pop("grpc.time_ms") < 60_000
        return line.method_name, fields


@pytest.fixture
def lines() -> Lines:
    return Lines()


async def test_a_call_that_succeeds(lines: Lines, tmp_path: Path) -> None:
    path = tmp_path / "sock"
    async with serve_cni(ScriptedService(), path=path, call_log=lines.log), Channel(path=str(path)) as channel:
        await CniStub(channel).add(POD)
    assert lines.take() == (
        "info",
        {
            "event": "finished call",
            "grpc.service": "pkg.cnirpc.CNI",
            "grpc.method": "Add",
            "grpc.code": "OK",
            **DESCRIBED,
        },
    )


@pytest.mark.parametrize(
    ("error", "level", "code", "text"),
    [
        (
            CniError(CniErrorCode.TRY_AGAIN_LATER, "no address", "1 of 1 in use"),
            "warning",
            "Unavailable",
            "no address: 1",
        ),
        (CniError(CniErrorCode.UNKNOWN_CONTAINER, "who?"), "info", "NotFound", "who?"),
        (RuntimeError("a defect"), "error", "Internal", "RuntimeError: a defect"),
    ],
)
async def test_a_call_that_fails(
    lines: Lines, tmp_path: Path, error: Exception, level: str, code: str, text: str
) -> None:
    async def script(_: CniArgs) -> None:
        raise error

    path = tmp_path / "sock"
    async with serve_cni(scripted(script), path=path, call_log=lines.log), Channel(path=str(path)) as channel:
        with pytest.raises(GRPCError):
            await CniStub(channel).check(POD)
    written, fields = lines.take()
    assert (written, fields["grpc.code"], fields["grpc.method"]) == (level, code, "Check")
    assert text in fields["grpc.error"]
    assert fields.items() >= DESCRIBED.items()


async def test_a_caller_that_goes(lines: Lines, tmp_path: Path) -> None:
    async def stay(_: CniArgs) -> None:
        await asyncio.Event().wait()

    service, path = scripted(stay), tmp_path / "sock"
    async with serve_cni(service, path=path, call_log=lines.log):
        async with Channel(path=str(path)) as channel:
            call = asyncio.create_task(CniStub(channel).del_(POD))
            await service.entered.wait()
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        await until(lambda: len(lines) == 1)
    level, fields = lines.take()
    assert (level, fields["grpc.method"], fields["grpc.code"]) == ("info", "Del", "Canceled")
    assert fields.items() >= DESCRIBED.items()


async def test_a_call_that_is_sent_away_unread(lines: Lines, tmp_path: Path) -> None:
    path = tmp_path / "sock"
    limits = CallLimits(running=0, queued=0)
    async with (
        serve_cni(ScriptedService(), path=path, limits=limits, call_log=lines.log),
        Channel(path=str(path)) as channel,
    ):
        with pytest.raises(GRPCError):
            await CniStub(channel).add(POD)
    level, fields = lines.take()
    assert (level, fields["grpc.code"]) == ("warning", "Unavailable")
    assert not fields.keys() & DESCRIBED.keys()


@pytest.mark.parametrize(
    ("method", "code", "level"), [("Status", "OK", "debug"), ("Status", "Unavailable", "warning"), ("GC", "OK", "info")]
)
def test_a_runtimes_frequent_question_is_a_detail(lines: Lines, method: str, code: str, level: str) -> None:
    lines.log.write(f"/pkg.cnirpc.CNI/{method}", CniArgs(path="/opt/cni/bin"), MeasuredCall(code=code, seconds=0.001))
    assert lines.take() == (
        level,
        {"event": "finished call", "grpc.service": "pkg.cnirpc.CNI", "grpc.method": method, "grpc.code": code},
    )
