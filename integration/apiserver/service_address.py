"""One address for several servers, as a Kubernetes Service gives it: a connection goes to the first that listens."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager


class ServiceAddress:
    """Forwards bytes both ways, TLS untouched. `ports` may be changed: that is for connections from then on."""

    def __init__(self, host: str, ports: Sequence[int]) -> None:
        self.host = host
        self.ports = ports
        self.port = 0
        self._connections: set[asyncio.Task[None]] = set()

    async def drop(self) -> None:
        """End every connection, so that the next request makes a new one."""
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            far_reader, far_writer = await self._connect()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_pump(reader, far_writer))
                    group.create_task(_pump(far_reader, writer))
            finally:
                far_writer.close()
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass  # nobody listens, one side has gone, or the connection is dropped: it ends in each case
        finally:
            self._connections.discard(task)
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for port in self.ports:
            try:
                return await asyncio.open_connection(self.host, port)
            except ConnectionRefusedError:
                continue
        raise ConnectionRefusedError("nobody listens")


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()
    raise ConnectionResetError("one side has closed")  # ends the other direction, too


@asynccontextmanager
async def one_address(host: str, ports: Sequence[int]) -> AsyncIterator[ServiceAddress]:
    """An address on another port of the same host."""
    address = ServiceAddress(host, ports)
    server = await asyncio.start_server(address.serve, host, 0)
    address.port = server.sockets[0].getsockname()[1]
    try:
        yield address
    finally:
        server.close()
        await address.drop()
