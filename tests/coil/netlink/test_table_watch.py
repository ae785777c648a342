"""Which transactions on nftables are worth a look: those of others, on our tables."""

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from coil.kernel.nft_table import TableFamily
from coil.netlink.monitor import LARGE, LATER, TableWatch, unique_thread_name
from coil.netlink.wire import HEADER, attribute_text, attribute_u32
from tests.coild.virtual_loop import pass_turns

OWN, OTHER = "nft-01234567", "nft"
INET, ARP, IPV4 = 1, 3, 2  # linux/netfilter.h
NEW_RULE, NEW_GENERATION = 0x0A06, 0x0A0F
ADD, DROP = 1, 2


class Events:
    """A netlink socket that tells what it is given, and then, if it is to, that it had to drop something."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int]] = []
        self.overflows = 0
        self._kernel, self._ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ours.setblocking(False)

    def setsockopt(self, _level: int, option: int, group: int) -> None:
        self.options.append((option, group))

    def fileno(self) -> int:
        return self._ours.fileno()

    def recv(self, size: int) -> bytes:
        if self.overflows:
            self.overflows -= 1
            raise OSError(errno.ENOBUFS, "no buffer space")
        return self._ours.recv(size)

    def close(self) -> None:
        self._ours.close()
        self._kernel.close()

    def tell(self, *messages: bytes) -> None:
        """Send all in one datagram."""
        self._kernel.send(b"".join(messages))

    def transaction(self, *messages: bytes, by: str) -> None:
        """As the kernel tells of it: what has changed, and, apart, the end."""
        self.tell(*messages)
        end = attribute_u32(1, 7) + attribute_u32(2, 1) + attribute_text(3, by)
        self.tell(message(NEW_GENERATION, 0, end))


def message(kind: int, family: int, attributes: bytes) -> bytes:
    body = bytes((family, 0, 0, 0)) + attributes
    return HEADER.pack(HEADER.size + len(body), kind, 0, 0, 0) + body


def change(family: int = INET, table: str = "coil-eip", *, more: bytes = b"") -> bytes:
    return message(NEW_RULE, family, attribute_text(1, table) + more)


@pytest.fixture
async def later(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What is put off for LATER, to be called by the test."""
    found: list[Callable[[], None]] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def put_off(delay: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
        if delay == LATER:
            found.append(callback)
        return call_later(delay, callback, *args)

    monkeypatch.setattr(loop, "call_later", put_off)
    return found


@contextmanager
def watching() -> Iterator[tuple[Events, TableWatch]]:
    events = Events()
    tables = ((TableFamily.INET, "coil-eip"), (TableFamily.ARP, "coil-eip"))
    watch = TableWatch(events, tables, own=OWN)  # type: ignore[arg-type]  # all that it needs of a socket
    try:
        yield events, watch
    finally:
        watch.close()


async def told(watch: TableWatch) -> bool:
    """Whether something was worth a look since the last question."""
    waiting = asyncio.ensure_future(watch.changed())
    await pass_turns()
    if waiting.done():
        return True
    waiting.cancel()
    await asyncio.wait({waiting})
    return False


@pytest.mark.parametrize(
    ("changed", "by", "expected"),
    [
        (change(), OTHER, True),
        (change(ARP), OTHER, True),
        (change(), OWN, False),
        (change(IPV4), OTHER, False),
        (change(table="coil-eip2"), OTHER, False),
        (change(table="other"), OTHER, False),
        (change(table="other", more=attribute_text(2, "coil-eip")), OTHER, False),
        (message(NEW_RULE, INET, b""), OTHER, False),
        (message(2, INET, attribute_text(1, "coil-eip")), OTHER, False),
    ],
)
async def test_what_is_worth_a_look(changed: bytes, by: str, expected: bool) -> None:
    with watching() as (events, watch):
        events.transaction(change(table="other"), changed, change(table="other"), by=by)
        assert await told(watch) is expected
        assert await told(watch) is False, "once"


async def test_each_transaction_for_itself() -> None:
    with watching() as (events, watch):
        events.transaction(change(), by=OWN)
        events.transaction(change(table="other"), by=OTHER)
        assert await told(watch) is False
        events.transaction(change(table="other"), by=OWN)
        events.transaction(change(), by=OTHER)
        events.transaction(change(), by=OWN)
        assert await told(watch) is True


async def test_many_count_as_one() -> None:
    with watching() as (events, watch):
        for _ in range(200):
            events.transaction(change(), by=OTHER)
            await pass_turns(1)
        assert await told(watch) is True
        assert await told(watch) is False


async def test_what_was_lost_is_worth_a_look_later_once(later: list[Callable[[], None]]) -> None:
    with watching() as (events, watch):
        events.overflows = 3
        events.transaction(change(), by=OWN)
        assert await told(watch) is False
        [tell] = later
        tell()
        assert await told(watch) is True
        assert await told(watch) is False
        events.overflows = 1
        events.transaction(change(), by=OWN)
        assert await told(watch) is False
        assert len(later) == 2


async def test_nobody_listens_to_large_transactions_of_ours(later: list[Callable[[], None]]) -> None:
    with watching() as (events, watch):
        joined = [(ADD, 7)]  # NFNLGRP_NFTABLES
        assert events.options == joined
        with watch.unheard(LARGE):
            assert events.options == joined
        assert await told(watch) is False
        assert later == []
        with suppress(ValueError), watch.unheard(LARGE + 1):
            assert events.options == [*joined, (DROP, 7)]
            raise ValueError
        assert events.options == [*joined, (DROP, 7), *joined]
        assert await told(watch) is False
        [tell] = later
        tell()
        assert await told(watch) is True


def test_the_kernel_has_room_for_the_name() -> None:
    assert len(unique_thread_name()) <= 15
    assert unique_thread_name() != unique_thread_name()
