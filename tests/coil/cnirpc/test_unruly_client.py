"""Clients that do not keep to the rules, or to their word: they are cut off, and nothing of them stays."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, StreamEnded

from coil.cnirpc.call_gate import CallLimits
from coil.cnirpc.error import CniErrorCode
from coil.cnirpc.messages import CniArgs
from coil.cnirpc.server import serve_cni
from tests.coil.cnirpc.scripted_service import (
    PATIENCE,
    ScriptedService,
    foreign_call,
    foreign_error,
    scripted,
    until,
)

HEADERS = [
    *((":method", "POST"), (":scheme", "http"), (":path", "/pkg.cnirpc.CNI/Del"), (":authority", "localhost")),
    *(("te", "trailers"), ("content-type", "application/grpc")),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coild.sock"


class RawClient:
    """HTTP/2 by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.http2 = H2Connection()
        self.http2.initiate_connection()
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def connect(cls, path: Path) -> AsyncIterator["RawClient"]:
        reader, writer = await asyncio.open_unix_connection(str(path))
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    async def send(self) -> None:
        self.writer.write(self.http2.data_to_send())
        await self.writer.drain()

    async def receive(self) -> list[Any]:
        """What the next octets mean; nothing at the end of the connection."""
        async with asyncio.timeout(PATIENCE):
            return self.http2.receive_data(await self.reader.read(65536))

    async def ended(self) -> bool:
        """Read on until the server has closed the connection."""
        async with asyncio.timeout(PATIENCE):
            while await self.reader.read(65536):
                pass
        return True


async def test_a_storm_of_resets_leaves_nothing(path: Path) -> None:
    async def script(_: CniArgs) -> None:
        await asyncio.Event().wait()

    async with serve_cni(scripted(script), path=path), RawClient.connect(path) as client:
        tasks = len(asyncio.all_tasks())
        for _ in range(50):
            for _ in range(40):
                stream = client.http2.get_next_available_stream_id()
                client.http2.send_headers(stream, HEADERS)
                client.http2.send_data(stream, b"\x00\x00\x00\x00\x00", end_stream=stream % 4 == 1)
                client.http2.reset_stream(stream, ErrorCodes.CANCEL)
            await client.send()
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert await asyncio.to_thread(foreign_call, path, "Add", container_id="a") == b"\x0a\x01a"


async def test_a_client_that_says_goodbye_in_the_middle_is_not_waited_for(path: Path) -> None:
    cancelled = asyncio.Event()

    async def script(_: CniArgs) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    service = scripted(script)
    async with serve_cni(service, path=path), RawClient.connect(path) as client:
        client.http2.send_headers(1, HEADERS)
        client.http2.send_data(1, b"\x00\x00\x00\x00\x00", end_stream=True)
        await client.send()
        await service.entered.wait()
        client.http2.close_connection()
        await client.send()
        async with asyncio.timeout(PATIENCE):
            await cancelled.wait()
        assert await client.ended()
        assert await asyncio.to_thread(foreign_call, path, "Add", container_id="a") == b"\x0a\x01a"


async def test_half_a_request_is_given_up_when_its_time_is_over(path: Path) -> None:
    limits = CallLimits(running=1, queued=0, seconds=0.05)
    async with serve_cni(ScriptedService(), path=path, limits=limits), RawClient.connect(path) as client:
        client.http2.send_headers(1, HEADERS)
        client.http2.send_data(1, b"\x00\x00\x00\x00\x09half")
        await client.send()
        events: list[Any] = []
        while not any(isinstance(event, StreamEnded) for event in events):
            events = await client.receive()
        # Its place is free. A call that has as little time itself may need another attempt.
        async with asyncio.timeout(PATIENCE):
            while (answer := await asyncio.to_thread(add, path)) is None:
                pass
        assert answer == b"\x0a\x01a"


def add(path: Path) -> bytes | None:
    """The answer to an ADD, None if it is to be tried again."""
    try:
        return foreign_call(path, "Add", container_id="a")
    except grpc.RpcError as error:
        _, detail = foreign_error(error)
        assert detail is not None
        assert detail.code == CniErrorCode.TRY_AGAIN_LATER
        return None


async def test_a_half_request_that_is_ended(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serve_cni(ScriptedService(), path=path), RawClient.connect(path) as client:
        client.http2.send_headers(1, HEADERS)
        client.http2.send_data(1, b"\x00\x00\x00\x00\x09half", end_stream=True)
        await client.send()
        events: list[Any] = []
        while not any(isinstance(event, StreamEnded) for event in events):
            events = await client.receive()
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("timeout", "told"),
    [
        ("0n", ("WARNING", "a request came when its deadline was over: coild or the node is overloaded")),
        ("1S", ("INFO", "Deadline exceeded")),
    ],
)
async def test_a_deadline_that_is_over_is_a_line_in_the_log(
    path: Path, caplog: pytest.LogCaptureFixture, timeout: str, told: tuple[str, str]
) -> None:
    async def script(_: CniArgs) -> None:
        await asyncio.Event().wait()

    caplog.set_level("INFO")
    async with serve_cni(scripted(script), path=path), RawClient.connect(path) as client:
        client.http2.send_headers(1, [*HEADERS, ("grpc-timeout", timeout)])
        client.http2.send_data(1, b"\x00\x00\x00\x00\x00", end_stream=True)
        await client.send()
        events: list[Any] = []
        while not any(isinstance(event, StreamEnded) for event in events):
            events = await client.receive()
        assert await asyncio.to_thread(foreign_call, path, "Add", container_id="a") == b"\x0a\x01a"
    assert [(record.levelname, record.getMessage(), record.exc_info) for record in caplog.records] == [(*told, None)]


async def test_what_is_no_http2_is_cut_off(path: Path) -> None:
    async with serve_cni(ScriptedService(), path=path), RawClient.connect(path) as client:
        client.writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)
        assert await client.ended()


async def test_more_streams_than_are_let_in_cost_the_connection(path: Path) -> None:
    async def script(_: CniArgs) -> None:
        await asyncio.Event().wait()

    async with serve_cni(scripted(script), path=path, grace=0.01), RawClient.connect(path) as client:
        for _ in range(101):
            client.http2.send_headers(client.http2.get_next_available_stream_id(), HEADERS)
        await client.send()
        events = await client.receive()
        while events and not any(isinstance(event, ConnectionTerminated) for event in events):
            events = await client.receive()
        assert await client.ended()
        assert await asyncio.to_thread(foreign_call, path, "Add", container_id="a") == b"\x0a\x01a"


async def test_connections_that_ask_nothing_make_room(path: Path) -> None:
    """Callers hold on to connections that they have forgotten; a call that is under way keeps its own."""
    leave = asyncio.Event()

    async def script(_: CniArgs) -> None:
        await leave.wait()

    service = scripted(script)
    limits = CallLimits(connections=8)
    async with serve_cni(service, path=path, limits=limits):
        call = asyncio.create_task(asyncio.to_thread(foreign_call, path, "Del"))
        await service.entered.wait()
        with ExitStack() as callers:
            silent = [callers.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(40)]
            for number, caller in enumerate(silent):
                caller.connect(str(path))
                if number % 2:
                    caller.send(b"PRI * HTTP/2.0\r\n")  # the first half of the preface
                await asyncio.sleep(0)
            assert await asyncio.to_thread(foreign_call, path, "Add", container_id="a") == b"\x0a\x01a"
            assert sum([await is_open(caller) for caller in silent]) <= limits.connections
        leave.set()
        assert await call == b""


async def is_open(caller: socket.socket) -> bool:
    """Whether the server has not closed its end."""
    caller.setblocking(False)
    while True:
        try:
            if not caller.recv(65536):
                return False
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
