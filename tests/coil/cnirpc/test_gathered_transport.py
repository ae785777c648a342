"""What is written in one turn of the event loop is sent together, in its order, and never after the end."""

import asyncio
from typing import Any

import pytest

from coil.cnirpc.gathered_transport import GatheredTransport


class ListTransport(asyncio.Transport):
    """Keeps what it is told to do."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[bytes | str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.done.append(bytes(data))

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def is_closing(self) -> bool:
        return bool({"close", "abort"} & {*self.done})

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": "its socket"}.get(name, default)


@pytest.fixture
def inner() -> ListTransport:
    return ListTransport()


async def test_the_writes_of_a_turn_are_one(inner: ListTransport) -> None:
    gathered = GatheredTransport(inner)
    gathered.write(b"head")
    gathered.write(b"")
    gathered.writelines([b"er", b"s"])
    assert inner.done == []
    await asyncio.sleep(0)
    assert inner.done == [b"headers"]
    gathered.write(b"trailers")
    await asyncio.sleep(0)
    assert inner.done == [b"headers", b"trailers"]


async def test_what_was_written_goes_before_the_close(inner: ListTransport) -> None:
    gathered = GatheredTransport(inner)
    gathered.write(b"last words")
    gathered.close()
    await asyncio.sleep(0)
    assert inner.done == [b"last words", "close"]
    assert gathered.is_closing()


async def test_an_abort_sends_nothing(inner: ListTransport) -> None:
    gathered = GatheredTransport(inner)
    gathered.write(b"never")
    gathered.abort()
    await asyncio.sleep(0)
    assert inner.done == ["abort"]


async def test_the_socket_is_the_inner_ones(inner: ListTransport) -> None:
    gathered = GatheredTransport(inner)
    assert gathered.get_extra_info("socket") == "its socket"
    assert gathered.get_extra_info("cipher", "none") == "none"
