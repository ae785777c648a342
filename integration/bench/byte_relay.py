"""A TCP relay that counts: what a program and its API server say to each other, TLS and all, in bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_CHUNK = 1 << 16


class ByteRelay:
    """`received` and `sent` are the program's, over all its connections."""

    def __init__(self, host: str, port: int) -> None:
        self.received = 0
        self.sent = 0
        self.port = 0
        self._host = host
        self._target_port = port
        self._connections: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # A connection that breaks is for its two ends to deal with, and a cancelled one is the relay's end.
            with suppress(OSError, asyncio.CancelledError):
                await self._connect(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def close(self) -> None:
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._target_port)
        directions = {
            asyncio.create_task(self._carry(reader, far_writer, outwards=True)),
            asyncio.create_task(self._carry(far_reader, writer, outwards=False)),
        }
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            far_writer.close()

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, outwards: bool) -> None:
        while data := await source.read(_CHUNK):
            if outwards:
                self.sent += len(data)
            else:
                self.received += len(data)
            sink.write(data)
            await sink.drain()


@asynccontextmanager
async def counting_bytes(host: str, port: int) -> AsyncIterator[ByteRelay]:
    """A relay to that server, on another port of the same address, so that the server's certificate is good for it."""
    relay = ByteRelay(host, port)
    server = await asyncio.start_server(relay.accept, host, 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await relay.close()
