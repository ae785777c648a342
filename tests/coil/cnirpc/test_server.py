"""The whole shell against a C-core client and against the plugin, over a real socket."""

import asyncio
import json
import math
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpclib.client import Channel
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection.v1 import reflection_pb2
from grpclib.reflection.v1alpha import reflection_pb2 as reflection_alpha_pb2

from coil.cnirpc.call_gate import CallLimits, call_deadline
from coil.cnirpc.error import CniError, CniErrorCode, CniStatusCodec, cni_error
from coil.cnirpc.listener import ListenError
from coil.cnirpc.messages import CniArgs, CniStub
from coil.cnirpc.server import serve_cni
from tests.coil.cnirpc.scripted_service import (
    PATIENCE,
    ScriptedService,
    can_connect,
    foreign_call,
    foreign_channel,
    foreign_error,
    until,
)
from tests.coil_cni.edges import ENVIRON, NETCONF, run_plugin


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coild.sock"


async def error_of(path: Path, method: str, **more: Any) -> tuple[grpc.StatusCode, Any]:
    with pytest.raises(grpc.RpcError) as raised:
        await asyncio.to_thread(foreign_call, path, method, **more)
    return foreign_error(raised.value)


def plugin(path: Path, command: str) -> Any:
    return run_plugin(ENVIRON | {"CNI_COMMAND": command}, json.dumps(NETCONF | {"socket": str(path)}).encode())


async def test_a_foreign_client_is_answered(path: Path) -> None:
    async with serve_cni(ScriptedService(), path=path):
        answer = await asyncio.to_thread(foreign_call, path, "Add", container_id="c0ffee")
        assert answer == b"\x0a\x06c0ffee"
        assert await asyncio.to_thread(foreign_call, path, "Del", container_id="c0ffee") == b""
    assert not path.exists()


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (CniErrorCode.TRY_AGAIN_LATER, grpc.StatusCode.UNAVAILABLE),
        (CniErrorCode.UNKNOWN_CONTAINER, grpc.StatusCode.NOT_FOUND),
        (CniErrorCode.INVALID_NETWORK_CONFIG, grpc.StatusCode.INVALID_ARGUMENT),
        (CniErrorCode.INTERNAL, grpc.StatusCode.INTERNAL),
    ],
)
async def test_an_error_reaches_a_foreign_client_with_its_details(
    path: Path, code: CniErrorCode, status: grpc.StatusCode
) -> None:
    async def script(_: CniArgs) -> None:
        raise CniError(code, "pool “default” is dry", "x" * 100_000)

    service = ScriptedService()
    service.script = script
    async with serve_cni(service, path=path):
        received, detail = await error_of(path, "Check")
        assert received is status
        assert (detail.code, detail.msg) == (code, "pool “default” is dry")
        assert detail.details.startswith("xxx")
        outcome = await asyncio.to_thread(plugin, path, "CHECK")
    assert outcome.code == code
    assert outcome.document["msg"] == "pool “default” is dry"
    assert outcome.document["details"] == detail.details


async def test_any_other_exception_is_logged_and_internal(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def script(_: CniArgs) -> None:
        raise RuntimeError("a defect")

    service = ScriptedService()
    service.script = script
    async with serve_cni(service, path=path):
        outcome = await asyncio.to_thread(plugin, path, "DEL")
    assert outcome.code == CniErrorCode.INTERNAL
    assert outcome.document["details"] == "RuntimeError: a defect"
    assert "DEL failed" in caplog.text


async def test_the_plugin_is_answered(path: Path) -> None:
    class Service(ScriptedService):
        async def add(self, cni_args: CniArgs) -> Any:
            response = await super().add(cni_args)
            response.result = json.dumps({"cniVersion": "1.0.0", "args": cni_args.args}).encode()
            return response

    async with serve_cni(Service(), path=path):
        outcome = await asyncio.to_thread(plugin, path, "ADD")
        assert outcome.document["args"]["K8S_POD_NAME"] == "cart-0"
        assert (await asyncio.to_thread(plugin, path, "DEL")).status == 0
        assert (await asyncio.to_thread(plugin, path, "CHECK")).status == 0
    assert (await asyncio.to_thread(plugin, path, "ADD")).code == CniErrorCode.TRY_AGAIN_LATER


async def test_our_own_client_gets_the_error_too(path: Path) -> None:
    async def script(_: CniArgs) -> None:
        raise CniError(CniErrorCode.UNKNOWN_CONTAINER, "who?")

    service = ScriptedService()
    service.script = script
    async with serve_cni(service, path=path), Channel(path=str(path), status_details_codec=CniStatusCodec()) as channel:
        with pytest.raises(GRPCError) as raised:
            await CniStub(channel).check(CniArgs(), timeout=PATIENCE)
    assert cni_error(raised.value).code is CniErrorCode.UNKNOWN_CONTAINER


@pytest.mark.parametrize(
    ("package", "messages"), [("grpc.reflection.v1", reflection_pb2), ("grpc.reflection.v1alpha", reflection_alpha_pb2)]
)
async def test_reflection_lists_and_describes_the_services(path: Path, package: str, messages: Any) -> None:
    def ask() -> list[Any]:
        requests = [
            messages.ServerReflectionRequest(list_services=""),
            messages.ServerReflectionRequest(file_containing_symbol="pkg.cnirpc.CNI"),
            messages.ServerReflectionRequest(file_containing_symbol="pkg.cnirpc.CNIArgs.ArgsEntry"),
            messages.ServerReflectionRequest(file_by_filename="google/protobuf/empty.proto"),
            messages.ServerReflectionRequest(file_containing_symbol="pkg.cnirpc.No"),
        ]
        with foreign_channel(path) as channel:
            method = channel.stream_stream(
                f"/{package}.ServerReflection/ServerReflectionInfo",
                request_serializer=messages.ServerReflectionRequest.SerializeToString,
                response_deserializer=messages.ServerReflectionResponse.FromString,
            )
            return list(method(iter(requests), timeout=PATIENCE))

    async with serve_cni(ScriptedService(), path=path):
        services, by_service, by_message, by_name, absent = await asyncio.to_thread(ask)
    names = {service.name for service in services.list_services_response.service}
    assert names >= {"pkg.cnirpc.CNI", "grpc.health.v1.Health"}
    for answer, name in [
        (by_service, "cni.proto"),
        (by_message, "cni.proto"),
        (by_name, "google/protobuf/empty.proto"),
    ]:
        (data,) = answer.file_descriptor_response.file_descriptor_proto
        assert FileDescriptorProto.FromString(data).name == name
    (data,) = by_service.file_descriptor_response.file_descriptor_proto
    (service,) = FileDescriptorProto.FromString(data).service
    assert [method.name for method in service.method] == ["Add", "Del", "Check", "GC", "Status"]
    assert absent.HasField("error_response")


@pytest.mark.parametrize("name", ["", "pkg.cnirpc.CNI"])
@pytest.mark.parametrize("healthy", [True, False])
async def test_health(path: Path, name: str, healthy: bool) -> None:
    def ask() -> int:
        with foreign_channel(path) as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=HealthCheckRequest.SerializeToString,
                response_deserializer=HealthCheckResponse.FromString,
            )
            status: int = check(HealthCheckRequest(service=name), timeout=PATIENCE).status
        return status

    async with serve_cni(ScriptedService(), path=path, healthy=lambda: healthy):
        status = await asyncio.to_thread(ask)
    assert status == (HealthCheckResponse.SERVING if healthy else HealthCheckResponse.NOT_SERVING)


async def test_a_callers_deadline_cancels_the_handler(path: Path) -> None:
    cancelled = asyncio.Event()

    async def script(_: CniArgs) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    service = ScriptedService()
    service.script = script
    async with serve_cni(service, path=path):
        # A call whose time is over before it has arrived is none of the service's.
        seconds = 0.05
        while not service.entered.is_set():
            status, _ = await error_of(path, "Del", seconds=seconds)
            assert status is grpc.StatusCode.DEADLINE_EXCEEDED
            seconds *= 2
        async with asyncio.timeout(PATIENCE):
            await cancelled.wait()


@pytest.mark.parametrize("seconds", [PATIENCE, None])
async def test_a_service_knows_until_when_its_caller_waits(path: Path, seconds: float | None) -> None:
    left: list[float] = []

    async def script(_: CniArgs) -> None:
        left.append(call_deadline() - asyncio.get_running_loop().time())

    service = ScriptedService()
    service.script = script
    async with serve_cni(service, path=path), Channel(path=str(path)) as channel:
        await CniStub(channel).check(CniArgs(), timeout=seconds)
    if seconds is None:
        assert left == [math.inf]
    else:
        assert 0 < left[0] <= seconds
    assert call_deadline() == math.inf


async def test_a_caller_that_goes_away_cancels_the_handler(path: Path) -> None:
    cancelled = asyncio.Event()

    async def script(_: CniArgs) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    service = ScriptedService()
    service.script = script
    async with serve_cni(service, path=path):
        async with Channel(path=str(path)) as channel:
            call = asyncio.create_task(CniStub(channel).del_(CniArgs()))
            await service.entered.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        async with asyncio.timeout(PATIENCE):
            await cancelled.wait()


async def test_too_many_calls_are_refused_with_a_cni_error(path: Path) -> None:
    leave = asyncio.Event()

    async def script(_: CniArgs) -> None:
        await leave.wait()

    service = ScriptedService()
    service.script = script
    async with serve_cni(service, path=path, limits=CallLimits(running=1, queued=0)), asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(foreign_call, path, "Del"))
        await service.entered.wait()
        status, detail = await error_of(path, "Del")
        leave.set()
    assert status is grpc.StatusCode.UNAVAILABLE
    assert detail.code == CniErrorCode.TRY_AGAIN_LATER


@pytest.mark.parametrize("by_cancellation", [True, False])
async def test_the_end_waits_for_the_calls_at_work(path: Path, by_cancellation: bool) -> None:
    leave, stop = asyncio.Event(), asyncio.Event()

    async def script(_: CniArgs) -> None:
        await leave.wait()

    service = ScriptedService()
    service.script = script

    async def serve() -> None:
        async with serve_cni(service, path=path):
            await stop.wait()

    serving = asyncio.create_task(serve())
    await until(path.exists)
    async with Channel(path=str(path), status_details_codec=CniStatusCodec()) as channel:
        call = asyncio.create_task(CniStub(channel).del_(CniArgs()))
        await service.entered.wait()
        if by_cancellation:
            serving.cancel()
        else:
            stop.set()
        await until(lambda: not path.exists())
        assert not can_connect(path)
        with pytest.raises(GRPCError) as raised:  # on the connection that lives on
            await CniStub(channel).check(CniArgs())
        assert cni_error(raised.value).code is CniErrorCode.TRY_AGAIN_LATER
        assert not serving.done()
        leave.set()
        await call
    (result,) = await asyncio.gather(serving, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError) is by_cancellation


async def test_the_end_does_not_wait_for_ever(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cancelled = asyncio.Event()

    async def script(_: CniArgs) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    service = ScriptedService()
    service.script = script
    async with Channel(path=str(path), status_details_codec=CniStatusCodec()) as channel:
        async with serve_cni(service, path=path, grace=0.01):
            call = asyncio.create_task(CniStub(channel).del_(CniArgs()))
            await service.entered.wait()
        assert cancelled.is_set()
        with pytest.raises(GRPCError) as raised:
            await call
        assert cni_error(raised.value).code is CniErrorCode.TRY_AGAIN_LATER
    assert "1 calls unanswered" in caplog.text
    assert not path.exists()


async def test_a_second_server_on_the_path_is_refused(path: Path) -> None:
    async with serve_cni(ScriptedService(), path=path):
        with pytest.raises(ListenError):
            async with serve_cni(ScriptedService(), path=path):
                pytest.fail("served")
        assert await asyncio.to_thread(foreign_call, path, "Add", container_id="a") == b"\x0a\x01a"


async def test_an_idle_connection_is_ended_with_the_server(path: Path) -> None:
    async with serve_cni(ScriptedService(), path=path):
        reader, writer = await asyncio.open_unix_connection(str(path))
        await reader.read(1)  # the server's first frame: it knows of the connection
    async with asyncio.timeout(PATIENCE):
        await reader.read()  # returns at the end of the stream only
    writer.close()
    await writer.wait_closed()


async def test_it_can_be_started_again(path: Path) -> None:
    for _ in range(2):
        async with serve_cni(ScriptedService(), path=path):
            assert await asyncio.to_thread(foreign_call, path, "Add", container_id="a") == b"\x0a\x01a"


async def test_a_burst_of_callers_finds_room_while_the_loop_is_busy(path: Path) -> None:
    """A Go client does not wait in connect(2): on a full backlog it fails with EAGAIN."""
    async with serve_cni(ScriptedService(), path=path):
        with ExitStack() as callers:
            for _ in range(300):  # without a turn of the loop, so nobody accepts
                caller = callers.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                caller.connect(str(path))
