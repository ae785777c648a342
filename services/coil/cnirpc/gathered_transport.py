"""A connection's writes, gathered: what is written in one turn of the event loop leaves in one send(2).

grpclib writes an answer's headers, message and trailers one by one, and each would wake the plugin that waits for them.

    protocol ─► write ─► gathered ─► (end of this turn, or close) ─► the transport
"""

import asyncio
from collections.abc import Iterable
from typing import Any


class GatheredTransport(asyncio.Transport):
    """Wraps a connected stream transport; belongs to one event loop's thread.

    Backpressure stays the inner transport's, which pauses the protocol itself: a turn's writes are bounded by what one
    turn produces.
    """

    def __init__(self, inner: asyncio.Transport) -> None:
        super().__init__()
        self._inner = inner
        self._gathered: list[bytes | bytearray | memoryview] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data:
            return
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._send)
        self._gathered.append(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        """What was written is sent before."""
        self._send()
        self._inner.close()

    def abort(self) -> None:
        self._gathered.clear()
        self._inner.abort()

    def is_closing(self) -> bool:
        return self._inner.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def _send(self) -> None:
        if self._gathered:
            data, self._gathered = b"".join(self._gathered), []
            self._inner.write(data)
