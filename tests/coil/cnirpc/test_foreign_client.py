"""The server against C-core: each call has its answer, or a status with its reason. See also test_unruly_client."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from coil.cnirpc.call_gate import CallLimits, call_deadline
from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import CniArgs
from coil.cnirpc.server import serve_cni
from coil.cnirpc.stream import MAX_REQUEST
from tests.coil.cnirpc.scripted_service import (
    PATIENCE,
    ScriptedService,
    foreign_call,
    foreign_channel,
    foreign_error,
    scripted,
)
from tests.coil_cni.protobuf import protobuf_message

ADD, DEL, CHECK = (f"/pkg.cnirpc.CNI/{method}" for method in ("Add", "Del", "Check"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coild.sock"


@pytest.fixture
def channel(path: Path) -> Iterator[grpc.Channel]:
    """One connection of C-core's."""
    with foreign_channel(path) as channel:
        yield channel


def request(**fields: Any) -> bytes:
    data: bytes = protobuf_message("pkg.cnirpc.CNIArgs", **fields).SerializeToString()
    return data


async def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, Any]:
    """The status and the CNIError that a call ends with."""
    with pytest.raises(grpc.RpcError) as raised:
        await asyncio.to_thread(call)
    return foreign_error(raised.value)


@pytest.mark.parametrize("code", CniErrorCode)
async def test_each_error_is_a_status_with_a_single_detail(path: Path, code: CniErrorCode) -> None:
    async def script(_: CniArgs) -> None:
        raise CniError(code, "pool “default” is dry", "100 %\nof it")

    async with serve_cni(scripted(script), path=path):
        with pytest.raises(grpc.RpcError) as raised:
            await asyncio.to_thread(foreign_call, path, "Check")
    status = protobuf_message("google.rpc.Status")
    status.ParseFromString(dict(raised.value.trailing_metadata())["grpc-status-details-bin"])
    assert (status.code, status.message) == (raised.value.code().value[0], raised.value.details())
    (packed,) = status.details
    detail = protobuf_message("pkg.cnirpc.CNIError")
    assert packed.Unpack(detail)
    assert (detail.code, detail.msg, detail.details) == (code, "pool “default” is dry", "100 %\nof it")


@pytest.mark.parametrize("method", ["/pkg.cnirpc.CNI/Nothing", "/pkg.cnirpc.Other/Add", "/"])
async def test_what_is_not_served_is_unimplemented(path: Path, channel: grpc.Channel, method: str) -> None:
    async with serve_cni(ScriptedService(), path=path):
        status, _ = await refused(lambda: channel.unary_unary(method)(b"", timeout=PATIENCE))
    assert status is grpc.StatusCode.UNIMPLEMENTED


async def test_a_deadline_arrives(path: Path) -> None:
    left: list[float] = []

    async def script(_: CniArgs) -> None:
        left.append(call_deadline() - asyncio.get_running_loop().time())

    async with serve_cni(scripted(script), path=path):
        await asyncio.to_thread(foreign_call, path, "Check", seconds=600)
    # The library rounds what it sends up to whole seconds.
    assert 300 < left[0] <= 601


async def test_a_call_that_is_cancelled_is_cancelled_in_the_service(path: Path, channel: grpc.Channel) -> None:
    cancelled = asyncio.Event()

    async def script(_: CniArgs) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    service = scripted(script)
    async with serve_cni(service, path=path):
        call = channel.unary_unary(DEL).future(request(), timeout=PATIENCE)
        await service.entered.wait()
        call.cancel()
        async with asyncio.timeout(PATIENCE):
            await cancelled.wait()
        # The connection is as good as before.
        assert await asyncio.to_thread(channel.unary_unary(ADD), request(container_id="a"), PATIENCE) == b"\x0a\x01a"


@pytest.mark.parametrize("calls", [32, 150])
async def test_many_calls_at_once_on_one_connection(path: Path, channel: grpc.Channel, calls: int) -> None:
    """Of more than a hundred, C-core itself holds back those that go beyond what the server lets in per connection."""
    together = asyncio.Barrier(min(calls, 100))
    asked: set[str] = set()

    async def script(args: CniArgs) -> None:
        asked.add(args.container_id)
        if len(asked) <= together.parties:
            await together.wait()

    async with serve_cni(scripted(script), path=path, limits=CallLimits(running=calls)):
        method = channel.unary_unary(CHECK)
        under_way = [method.future(request(container_id=f"c{number}"), timeout=PATIENCE) for number in range(calls)]
        answers = await asyncio.gather(*(asyncio.to_thread(call.result) for call in under_way))
    assert answers == [b""] * calls
    assert asked == {f"c{number}" for number in range(calls)}


async def test_health_is_watched(path: Path, channel: grpc.Channel) -> None:
    def watch() -> int:
        method = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        updates = method(HealthCheckRequest(service="pkg.cnirpc.CNI"), timeout=PATIENCE)
        # At first it may not be known yet.
        status: int = next(update.status for update in updates if update.status != HealthCheckResponse.UNKNOWN)
        updates.cancel()
        return status

    async with serve_cni(ScriptedService(), path=path):
        assert await asyncio.to_thread(watch) == HealthCheckResponse.SERVING


async def test_a_request_that_is_too_large(path: Path, channel: grpc.Channel, caplog: pytest.LogCaptureFixture) -> None:
    async with serve_cni(ScriptedService(), path=path):
        method = channel.unary_unary(ADD)
        fits = request(container_id="a", stdin_data=b"x" * (MAX_REQUEST - 100))
        assert await asyncio.to_thread(method, fits, 30) == b"\x0a\x01a"
        for size in (MAX_REQUEST, 10 * MAX_REQUEST):
            status, detail = await refused(lambda size=size: method(request(stdin_data=b"x" * size), timeout=PATIENCE))  # type: ignore[misc]
            assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert detail.code == CniErrorCode.INVALID_NETWORK_CONFIG
        assert await asyncio.to_thread(method, fits, 30) == b"\x0a\x01a"
    assert "Traceback" not in caplog.text


async def test_a_request_that_is_compressed(
    path: Path, channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_cni(ScriptedService(), path=path):
        data = request(container_id="a" * 1000)
        method = channel.unary_unary(ADD)
        status, detail = await refused(lambda: method(data, timeout=PATIENCE, compression=grpc.Compression.Gzip))
    assert (status, detail.code) == (grpc.StatusCode.UNIMPLEMENTED, CniErrorCode.UNSUPPORTED_FIELD)
    assert "Traceback" not in caplog.text


async def test_a_call_without_a_request(path: Path, channel: grpc.Channel, caplog: pytest.LogCaptureFixture) -> None:
    async with serve_cni(ScriptedService(), path=path):
        status, detail = await refused(lambda: channel.stream_unary(ADD)(iter(()), timeout=PATIENCE))
    assert (status, detail.code) == (grpc.StatusCode.INVALID_ARGUMENT, CniErrorCode.DECODING_FAILURE)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x05ab", b"\x0a\x01\xff"], ids=["tag", "length", "text"])
async def test_a_request_that_is_no_message(
    path: Path, channel: grpc.Channel, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    async with serve_cni(ScriptedService(), path=path):
        status, detail = await refused(lambda: channel.unary_unary(ADD)(data, timeout=PATIENCE))
    assert (status, detail.code) == (grpc.StatusCode.INVALID_ARGUMENT, CniErrorCode.DECODING_FAILURE)
    assert "Traceback" not in caplog.text
