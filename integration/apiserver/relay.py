"""A TCP relay in front of an API server: the network between it and a client, which a test takes away or makes long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

_PIPE_CHUNKS = 1024
_Pipe: TypeAlias = asyncio.Queue[tuple[float, bytes]]
"""When it is to arrive, and what."""


class Relay:
    """Forwards bytes both ways, TLS untouched. `cut` ends all connections and refuses new ones.

    `delay` is how many seconds each direction takes, from the next bytes on; nothing else is slower by it. While `open`
    is clear, nothing arrives at all.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._listening: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.host = host
        self.port = 0
        self.delay = 0.0
        self.open = asyncio.Event()
        self.open.set()

    async def join(self) -> None:
        """Listen, always at the same port; at first and after `cut`."""
        self._listening = await asyncio.start_server(self._relay, self.host, self.port)
        self.port = self._listening.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        if self._listening is not None:
            self._listening.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        far_writer: asyncio.StreamWriter | None = None
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            async with asyncio.TaskGroup() as group:
                for source, sink in ((reader, far_writer), (far_reader, writer)):
                    pipe: _Pipe = asyncio.Queue(_PIPE_CHUNKS)
                    group.create_task(self._fill(pipe, source))
                    group.create_task(self._drain(pipe, sink))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass  # one side has gone, or the relay is cut: the connection ends either way
        finally:
            self._connections.discard(task)
            writer.close()
            if far_writer is not None:
                far_writer.close()

    async def _fill(self, pipe: _Pipe, source: asyncio.StreamReader) -> None:
        clock = asyncio.get_running_loop().time
        while data := await source.read(1 << 16):
            await pipe.put((clock() + self.delay, data))
        await pipe.put((clock() + self.delay, b""))

    async def _drain(self, pipe: _Pipe, sink: asyncio.StreamWriter) -> None:
        while True:
            due, data = await pipe.get()
            if (wait := due - asyncio.get_running_loop().time()) > 0:
                await asyncio.sleep(wait)
            await self.open.wait()
            if not data:
                raise ConnectionResetError("one side has closed")  # ends the other direction, too
            sink.write(data)
            await sink.drain()


@asynccontextmanager
async def relaying(host: str, port: int) -> AsyncIterator[Relay]:
    """A relay to that server, on another port of the same address."""
    relay = Relay(host, port)
    await relay.join()
    try:
        yield relay
    finally:
        await relay.cut()
