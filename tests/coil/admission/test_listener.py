"""How long a connection may keep the server waiting, in virtual time."""

import asyncio
from ipaddress import ip_address

from coil.admission.listener import Connection, Dropped
from tests.coil.reconcile.virtual_time import run_virtual

SECONDS = 5.0


class Link(asyncio.Transport):
    """Notes its end."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


class Opened:
    """A connection whose handshake is over."""

    def __init__(self) -> None:
        self.dropped: list[Dropped] = []
        self.link = Link()
        self.connection = Connection(
            ip_address("192.0.2.1"), asyncio.Protocol(), seconds=SECONDS, dropped=self.dropped.append
        )
        self.connection.connection_made(self.link)

    def idle_since(self) -> float | None:
        return self.connection.idle_since


def test_one_that_sends_nothing_ends() -> None:
    async def main() -> None:
        opened = Opened()
        await asyncio.sleep(SECONDS - 0.1)
        assert not opened.link.aborted
        await asyncio.sleep(0.2)
        assert (opened.link.aborted, opened.dropped) == (True, [Dropped.SLOW])

    run_virtual(main)


def test_between_two_requests_it_may_be_idle_and_within_one_it_may_not() -> None:
    """The API server keeps its connections for longer than a request may take to arrive."""

    async def main() -> None:
        opened = Opened()
        connection = opened.connection
        for _ in range(3):
            connection.data_received(b"head")
            await asyncio.sleep(SECONDS - 0.1)
            connection.data_received(b"body")
            connection.arrived()
            assert opened.idle_since() is None
            await asyncio.sleep(100)  # at work
            connection.answered()
            assert opened.idle_since() == asyncio.get_running_loop().time()
            await asyncio.sleep(100)
        assert (opened.link.aborted, opened.dropped) == (False, [])
        connection.data_received(b"head")
        await asyncio.sleep(SECONDS - 0.1)
        connection.data_received(b"a part of the body")  # gives no more time
        await asyncio.sleep(0.2)
        assert (opened.link.aborted, opened.dropped) == (True, [Dropped.SLOW])

    run_virtual(main)


def test_whoever_ends_it_is_told_once() -> None:
    async def main() -> None:
        opened = Opened()
        opened.connection.end(Dropped.CROWDED)
        opened.connection.end(Dropped.SLOW)
        opened.connection.connection_lost(None)
        await asyncio.sleep(2 * SECONDS)
        assert opened.dropped == [Dropped.CROWDED]

    run_virtual(main)
