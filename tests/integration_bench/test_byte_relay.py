"""What goes through the relay is counted, and arrives."""

import asyncio

from integration.bench.byte_relay import counting_bytes

HOST = "127.0.0.1"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says everything three times, and ends when there is nothing more to say."""
    while piece := await reader.read(1 << 16):
        writer.write(piece * 3)
        await writer.drain()
    writer.close()


async def test_each_direction_is_counted_over_all_connections() -> None:
    server = await asyncio.start_server(answer, HOST, 0)
    async with server, counting_bytes(HOST, server.sockets[0].getsockname()[1]) as relay:
        for _ in range(2):
            reader, writer = await asyncio.open_connection(HOST, relay.port)
            writer.write(b"x" * 1000)
            assert await reader.readexactly(3000) == b"x" * 3000
            writer.close()
            await writer.wait_closed()
        assert (relay.sent, relay.received) == (2000, 6000)


async def test_a_server_that_is_away_ends_the_connection() -> None:
    server = await asyncio.start_server(answer, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    async with counting_bytes(HOST, port) as relay:
        reader, writer = await asyncio.open_connection(HOST, relay.port)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    assert (relay.sent, relay.received) == (0, 0)


async def test_the_end_of_the_relay_is_the_end_of_its_connections() -> None:
    server = await asyncio.start_server(answer, HOST, 0)
    async with server:
        async with counting_bytes(HOST, server.sockets[0].getsockname()[1]) as relay:
            reader, writer = await asyncio.open_connection(HOST, relay.port)
            writer.write(b"x")
            assert await reader.readexactly(3) == b"xxx"
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
