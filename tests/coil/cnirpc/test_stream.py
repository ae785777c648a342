"""The codec reads what betterproto writes, and refuses what is no request."""

import asyncio
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from coil.cnirpc.messages import AddResponse, CniArgs
from coil.cnirpc.stream import CniCodec, GatheredTransport

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20
)  # betterproto leaves out an empty one
requests = st.builds(
    CniArgs,
    container_id=words,
    netns=words,
    ifname=words,
    args=st.dictionaries(names, words, max_size=4),
    path=words,
    stdin_data=st.binary(max_size=60),
    ips=st.lists(words, max_size=3),
    interfaces=st.dictionaries(names, st.booleans(), max_size=3),
)


@given(requests)
def test_a_request_is_read_as_betterproto_wrote_it(request: CniArgs) -> None:
    read = CniCodec().decode(bytes(request), CniArgs)
    assert type(read) is CniArgs
    assert read.to_dict() == request.to_dict()


def test_a_field_that_is_not_known_is_passed_over() -> None:
    assert CniCodec().decode(bytes(CniArgs(ifname="eth0")) + b"\xfa\x7f\x01x", CniArgs).ifname == "eth0"


@pytest.mark.parametrize(
    "data", [b"\x0a\x05ab", b"\x0a\x01\xff", b"\x0b", b"\xff"], ids=["cut", "text", "group", "tag"]
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        CniCodec().decode(data, CniArgs)


def test_an_answer_is_what_betterproto_makes_of_it() -> None:
    answer = AddResponse(result=b"{}")
    assert CniCodec().encode(answer, AddResponse) == bytes(answer)


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
