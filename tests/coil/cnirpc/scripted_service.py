"""A CNI service that does as the test says, and a foreign (C-core) client for it."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
from betterproto.lib.google.protobuf import Empty

from coil.cnirpc.messages import AddResponse, CniArgs, CniBase
from tests.coil_cni.protobuf import protobuf_message

PATIENCE = 60.0
"""Seconds that only a failure takes."""


class ScriptedService(CniBase):
    """`Add` answers with the container id; `Del` and `Check` await what they are given."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.script: Callable[[CniArgs], Awaitable[None]] = self._nothing

    async def _nothing(self, _: CniArgs) -> None: ...

    async def add(self, cni_args: CniArgs) -> AddResponse:
        return AddResponse(result=cni_args.container_id.encode())

    async def del_(self, cni_args: CniArgs) -> Empty:
        self.entered.set()
        await self.script(cni_args)
        return Empty()

    async def check(self, cni_args: CniArgs) -> Empty:
        await self.script(cni_args)
        return Empty()


def scripted(script: Callable[[CniArgs], Awaitable[None]]) -> ScriptedService:
    service = ScriptedService()
    service.script = script
    return service


def foreign_channel(path: Path) -> grpc.Channel:
    """A channel with a connection of its own.

    By default C-core shares one connection among the channels of a process to the same address: after a restart of the
    server, a new channel could be given the ended server's connection.
    """
    return grpc.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)])


def foreign_call(path: Path, method: str, /, *, seconds: float = PATIENCE, **fields: Any) -> bytes:
    """Blocks; the serialized response. Raises grpc.RpcError."""
    request = protobuf_message("pkg.cnirpc.CNIArgs", **fields).SerializeToString()
    with foreign_channel(path) as channel:
        response: bytes = channel.unary_unary(f"/pkg.cnirpc.CNI/{method}")(request, timeout=seconds)
    return response


def foreign_error(error: grpc.RpcError) -> tuple[grpc.StatusCode, Any]:
    """The status code and the CNIError among the details, as protobuf unpacks it (None without)."""
    trailers = dict(error.trailing_metadata() or ())
    status = protobuf_message("google.rpc.Status")
    status.ParseFromString(trailers.get("grpc-status-details-bin", b""))
    detail = protobuf_message("pkg.cnirpc.CNIError")
    return error.code(), detail if any(packed.Unpack(detail) for packed in status.details) else None


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop turn until `condition` holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


def can_connect(path: Path) -> bool:
    with closing(socket.socket(socket.AF_UNIX)) as probe:
        return probe.connect_ex(str(path)) == 0
