"""The exchange against h2 as the server, over bytes in memory: frames cut anywhere, windows, resets."""

import contextlib
import itertools
from collections.abc import Iterable

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil_cni.hpack import literal
from coil_cni.http2 import MAX_RESPONSE, Exchange, Http2Error, NotProcessedError

REQUEST = b"\x83\x86" + literal(b":path", b"/a.B/C") + literal(b":authority", b"localhost")
RESPONSE_HEADERS = [(":status", "200"), ("content-type", "application/grpc")]
TRAILERS = [("grpc-status", "0")]


class Peer:
    """An HTTP/2 server that gathers the request and leaves the answer to the test."""

    def __init__(self, settings: dict[int, int] | None = None) -> None:
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.h2.initiate_connection()
        if settings:
            self.h2.update_settings(settings)
        self.request: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.complete = False
        self.acknowledged = False

    def receive(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            match event:
                case h2.events.RequestReceived():
                    self.request = [(bytes(name), bytes(value)) for name, value in event.headers or []]
                case h2.events.DataReceived():
                    self.body += event.data or b""
                    self.h2.acknowledge_received_data(event.flow_controlled_length or 0, 1)
                case h2.events.StreamEnded():
                    self.complete = True
                case h2.events.SettingsAcknowledged():
                    self.acknowledged = True

    def answer(self, body: bytes, *, padding: int | None = None) -> None:
        self.h2.send_headers(1, RESPONSE_HEADERS)
        size = self.h2.max_outbound_frame_size - 300
        for start in range(0, len(body), size):
            self.h2.send_data(1, body[start : start + size], pad_length=padding)
        self.h2.send_headers(1, TRAILERS, end_stream=True)

    def output(self) -> bytes:
        return self.h2.data_to_send()


def pump(exchange: Exchange, peer: Peer) -> None:
    """Carry bytes to and fro until neither side has any."""
    while sent := exchange.take_output():
        peer.receive(sent)
        if received := peer.output():
            exchange.feed(received)


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def test_request_goes_out_in_one_write_and_is_what_the_server_reads() -> None:
    exchange, peer = Exchange(REQUEST, b"hello"), Peer()
    peer.receive(exchange.take_output())
    assert peer.request == [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/a.B/C"),
        (b":authority", b"localhost"),
    ]
    assert (peer.body, peer.complete) == (b"hello", True)


@given(st.binary(max_size=40_000), st.lists(st.integers(0, 50_000), max_size=20), st.sampled_from([None, 0, 200]))
def test_any_answer_in_any_pieces(body: bytes, cuts: list[int], padding: int | None) -> None:
    exchange, peer = Exchange(REQUEST, b"hello"), Peer()
    peer.receive(exchange.take_output())
    peer.answer(body, padding=padding)
    for piece in filter(None, pieces(peer.output(), cuts)):
        assert not exchange.ended
        exchange.feed(piece)
    assert exchange.ended
    assert bytes(exchange.body) == body
    assert dict(exchange.headers) == {
        b":status": b"200",
        b"content-type": b"application/grpc",
        b"grpc-status": b"0",
    }


def test_settings_are_acknowledged_and_pings_answered() -> None:
    exchange, peer = Exchange(REQUEST, b"hello"), Peer()
    peer.h2.ping(b"12345678")
    pump(exchange, peer)
    assert peer.acknowledged
    exchange.feed(b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"87654321")
    assert exchange.take_output() == b"\x00\x00\x08\x06\x01\x00\x00\x00\x00" + b"87654321"


def test_a_response_may_fill_the_window_without_updates_from_us() -> None:
    exchange, peer = Exchange(REQUEST, b"hello"), Peer()
    peer.receive(exchange.take_output())
    assert peer.h2.local_flow_control_window(1) == MAX_RESPONSE
    peer.answer(b"x" * MAX_RESPONSE)
    exchange.feed(peer.output())
    assert (exchange.ended, len(exchange.body)) == (True, MAX_RESPONSE)


def test_a_larger_response_is_refused() -> None:
    exchange = Exchange(REQUEST, b"hello")
    frame = b"\x00\x40\x00\x00\x00\x00\x00\x00\x01" + b"x" * 16384
    for _ in range(MAX_RESPONSE // 16384):
        exchange.feed(frame)
    with pytest.raises(Http2Error, match="response of more than"):
        exchange.feed(frame)


@given(size=st.integers(0, 300_000), window=st.integers(65_535, 200_000))
def test_a_large_request_obeys_the_windows_of_the_server(size: int, window: int) -> None:
    peer = Peer({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
    exchange = Exchange(REQUEST, b"x" * size + b"y")
    # h2 raises FlowControlError for an octet too many; it opens the windows again as it reads.
    pump(exchange, peer)
    assert (peer.complete, peer.body) == (True, b"x" * size + b"y")


def test_a_window_made_smaller_has_to_be_paid_back_first() -> None:
    def data_sent() -> int:
        output, octets = exchange.take_output(), 0
        while output:
            length = int.from_bytes(output[:3], "big")
            octets += length if output[3] == 0 else 0
            output = output[9 + length :]
        return octets

    def window_update(stream: int, increment: int) -> bytes:
        return b"\x00\x00\x04\x08\x00" + stream.to_bytes(4, "big") + increment.to_bytes(4, "big")

    exchange = Exchange(REQUEST, b"x" * 70_000)
    output = exchange.take_output()
    assert output.count(b"x") == 65_535
    exchange.feed(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04" + (100).to_bytes(4, "big"))
    exchange.feed(window_update(0, 100_000))
    assert data_sent() == 0
    exchange.feed(window_update(1, 65_435))  # the stream's window is 100 - 65535 + 65435 now
    assert data_sent() == 0
    exchange.feed(window_update(1, 7))
    assert data_sent() == 7
    exchange.feed(window_update(1, 65_535))
    assert data_sent() == 70_000 - 65_535 - 7


def test_header_block_in_continuation_frames() -> None:
    exchange, peer = Exchange(REQUEST, b"hello"), Peer()
    peer.receive(exchange.take_output())
    long = [*RESPONSE_HEADERS, ("grpc-status", "13"), ("grpc-message", "Ä".encode().hex() * 9000)]
    peer.h2.send_headers(1, long, end_stream=True)
    exchange.feed(peer.output())
    assert exchange.ended
    assert dict(exchange.headers)[b"grpc-status"] == b"13"
    assert len(dict(exchange.headers)[b"grpc-message"]) == 36_000


def test_frames_of_other_streams_and_kinds_are_passed_over() -> None:
    exchange, peer = Exchange(REQUEST, b"hello"), Peer()
    peer.receive(exchange.take_output())
    exchange.feed(b"\x00\x00\x03\x00\x00\x00\x00\x00\x03abc")  # DATA on stream 3
    exchange.feed(b"\x00\x00\x02\x0a\x00\x00\x00\x00\x00hi")  # ALTSVC, which we do not know
    exchange.feed(b"\x00\x00\x05\x02\x00\x00\x00\x00\x01\x00\x00\x00\x00\x10")  # PRIORITY
    peer.answer(b"body")
    exchange.feed(peer.output())
    assert bytes(exchange.body) == b"body"


def test_headers_with_priority_and_padding() -> None:
    exchange = Exchange(REQUEST, b"hello")
    exchange.feed(b"\x00\x00\x09\x01\x2d\x00\x00\x00\x01" + b"\x02" + b"\x00\x00\x00\x00\x10" + b"\x88" + b"\x00\x00")
    assert exchange.headers == [(b":status", b"200")]
    assert exchange.ended


def test_reset_and_goaway_say_whether_the_request_was_processed() -> None:
    def fed(frame: bytes) -> type[Exception] | None:
        exchange = Exchange(REQUEST, b"hello")
        try:
            exchange.feed(frame)
        except Http2Error as error:
            return type(error)
        return None

    reset = b"\x00\x00\x04\x03\x00\x00\x00\x00\x01"
    goaway = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00"
    assert fed(reset + (7).to_bytes(4, "big")) is NotProcessedError
    assert fed(reset + (8).to_bytes(4, "big")) is Http2Error
    assert fed(goaway + (0).to_bytes(4, "big") + (0).to_bytes(4, "big")) is NotProcessedError
    assert fed(goaway + (1).to_bytes(4, "big") + (11).to_bytes(4, "big")) is Http2Error
    # A graceful end: this stream is still answered.
    assert fed(goaway + (1).to_bytes(4, "big") + (0).to_bytes(4, "big")) is None


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", "a frame of 16385"),
        (b"\x00\x00\x04\x05\x04\x00\x00\x00\x01\x00\x00\x00\x02", "pushed"),
        (b"\x00\x00\x01\x00\x08\x00\x00\x00\x01\x01", "padding"),
        (b"\x00\x00\x00\x00\x08\x00\x00\x00\x01", "padding"),
        (b"\x00\x00\x01\x09\x04\x00\x00\x00\x01\x88", "contiguous"),
        (b"\x00\x00\x01\x01\x00\x00\x00\x00\x01\x88" + b"\x00\x00\x01\x00\x01\x00\x00\x00\x01x", "contiguous"),
        (b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\xff", "malformed header block"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of"),
    ],
)
def test_what_is_not_http2_is_an_error(frame: bytes, message: str) -> None:
    with pytest.raises(Http2Error, match=message):
        Exchange(REQUEST, b"hello").feed(frame)


def test_an_endless_header_block_is_an_error() -> None:
    exchange = Exchange(REQUEST, b"hello")
    exchange.feed(b"\x00\x00\x01\x01\x00\x00\x00\x00\x01\x00")
    continuation = b"\x00\x40\x00\x09\x00\x00\x00\x00\x01" + b"\x00" * 16384
    with pytest.raises(Http2Error, match="header block of more than"):
        exchange.feed(continuation * 4)


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_octets_end_in_a_result_or_an_http2_error(chunks: list[bytes]) -> None:
    exchange = Exchange(REQUEST, b"hello")
    try:
        for chunk in chunks:
            exchange.feed(chunk)
    except Http2Error:
        pass


frames = st.builds(
    lambda kind, flags, stream, payload: (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    ),
    st.integers(0, 11),
    st.integers(0, 255),
    st.integers(0, 2),
    st.binary(max_size=40),
)


@given(st.lists(frames, max_size=8))
def test_any_frames_end_in_a_result_or_an_http2_error(received: list[bytes]) -> None:
    exchange = Exchange(REQUEST, b"hello")
    with contextlib.suppress(Http2Error):
        exchange.feed(b"".join(received))
