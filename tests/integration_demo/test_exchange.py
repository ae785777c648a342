import socket
from collections.abc import Callable, Iterator

import pytest

from integration.demo import exchange
from integration.demo.exchange import Direction, Exchange
from integration.demo.narration import DemoError

PATIENCE = 60.0
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    pod, server = socket.socketpair()
    with pod, server:
        yield pod, server


@pytest.mark.parametrize(("upload", "download"), [(300_000, 200_000), (1, 0), (0, 100_000)])
def test_all_of_it_arrives_as_it_was_sent(ends: Ends, upload: int, download: int) -> None:
    with Exchange(*ends, upload=upload, download=download, seconds=0.05) as transfer:
        transfer.finish(PATIENCE)
    assert [direction.arrived for direction in transfer.directions] == [upload, download]
    assert all(direction.complete for direction in transfer.directions)


def test_no_more_is_sent_than_is_due(ends: Ends) -> None:
    direction = Direction(*ends, size=1000, seconds=10.0)
    direction.send(0.0)
    assert direction.sent == 0
    direction.send(2.5)
    assert direction.sent == 250
    direction.send(1000.0)
    assert direction.sent == 1000
    direction.receive()
    assert direction.complete


def test_what_does_not_fit_is_sent_later(ends: Ends) -> None:
    pod, server = ends
    for end in ends:
        end.setblocking(False)
    direction = Direction(pod, server, size=8 << 20, seconds=1.0)
    direction.send(1.0)
    assert 0 < direction.sent < direction.size
    while not direction.complete:
        direction.receive()
        direction.send(1.0)
    assert len(direction.digest) == 64


def test_a_byte_that_is_another_one_is_found(ends: Ends) -> None:
    pod, server = ends
    direction = Direction(pod, server, size=10, seconds=1.0)
    pod.send(b"x" * 10)
    direction.receive()
    direction.sent = direction.size
    with pytest.raises(DemoError, match="not the same"):
        assert direction.digest


def test_the_longest_gap_is_between_two_arrivals(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((10.0, 10.5, 13.0, 13.1))
    monkeypatch.setattr(exchange, "time", _Clock(lambda: next(moments)))
    direction = Direction(*ends, size=4, seconds=1.0)
    assert direction.longest_gap() == 0.0
    for _ in range(4):
        ends[0].send(b"x")
        direction.receive()
    assert direction.longest_gap() == 2.5


def test_a_connection_that_ends_early_is_told_with_its_progress(ends: Ends) -> None:
    pod, server = ends
    direction = Direction(pod, server, size=10, seconds=1.0)
    pod.send(b"1234")
    pod.close()
    direction.receive()
    with pytest.raises(DemoError, match="ended after 4 of 10 bytes"):
        direction.receive()


def test_a_transfer_that_does_not_end_in_time_is_told_with_its_progress(ends: Ends) -> None:
    with (
        Exchange(*ends, upload=1000, download=0, seconds=1e6) as transfer,
        pytest.raises(DemoError, match="0 of 1000 bytes and 0 of 0 bytes"),
    ):
        transfer.finish(0.0)


def test_a_connection_that_breaks_ends_the_transfer(ends: Ends) -> None:
    transfer = Exchange(*ends, upload=1000, download=1000, seconds=1e6)
    ends[0].shutdown(socket.SHUT_RDWR)
    with pytest.raises((DemoError, OSError)), transfer:
        transfer.finish(PATIENCE)


def test_silence_has_an_end(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_SILENCE", 0.0)
    transfer = Exchange(*ends, upload=1000, download=0, seconds=1e6)
    with pytest.raises(DemoError, match="nothing has arrived"), transfer:
        transfer.finish(PATIENCE)


class _Clock:
    """Stands for the module `time`."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
