"""Tells whoever comes which address it sees them come from, by TCP and by UDP, at one port in both families."""

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import cast

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class _Datagrams(asyncio.DatagramProtocol):
    _transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(addr[0].encode(), addr)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        writer.write(writer.get_extra_info("peername")[0].encode())
        await writer.drain()
    except OSError:
        pass  # it has left
    finally:
        writer.close()


async def serve(port: int) -> None:
    """Until it is cancelled. A kernel without IPv6 has one family. Raises OSError."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        for family in _FAMILIES:
            if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
                continue
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                listening = socket.socket(family, kind)
                if kind == socket.SOCK_STREAM:
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind(("", port))
                if kind == socket.SOCK_STREAM:
                    await stack.enter_async_context(await asyncio.start_server(_answer, sock=listening))
                else:
                    transport, _ = await loop.create_datagram_endpoint(_Datagrams, sock=listening)
                    stack.callback(transport.close)
        await asyncio.Event().wait()
