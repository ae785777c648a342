"""The plugin against a peer that checks all that RFC 9113 asks of a request, as grpc-go does and C-core does not."""

import time
from itertools import pairwise

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

from coil_cni.grpc import call
from coil_cni.http2 import MAX_RESPONSE


class StrictServer:
    """Both ends of one connection: what the plugin sends is checked by h2, which raises ProtocolError for a fault."""

    def __init__(self, answer: bytes) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.received = bytearray()
        self._answer = answer
        self._http2 = H2Connection(H2Configuration(client_side=False, validate_inbound_headers=True))
        self._http2.initiate_connection()

    def settimeout(self, seconds: float, /) -> None:
        assert seconds > 0

    def sendall(self, data: bytes, /) -> None:
        for event in self._http2.receive_data(data):
            match event:
                case RequestReceived():
                    self.fields = [(bytes(name), bytes(value)) for name, value in event.headers]
                case DataReceived():
                    self.received += event.data
                    self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case StreamEnded():
                    self._respond(event.stream_id)

    def recv(self, size: int, /) -> bytes:
        return self._http2.data_to_send(size)

    def close(self) -> None:
        """Nothing is left to be done."""

    def _respond(self, stream: int) -> None:
        self._http2.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
        body = b"\x00" + len(self._answer).to_bytes(4, "big") + self._answer
        for start in range(0, len(body), self._http2.max_outbound_frame_size):
            self._http2.send_data(stream, body[start : start + self._http2.max_outbound_frame_size])
        self._http2.send_headers(stream, [("grpc-status", "0")], end_stream=True)


@pytest.mark.parametrize("method", ["/pkg.cnirpc.CNI/Add", "/pkg.cnirpc.CNI/Del", "/grpc.health.v1.Health/Check"])
def test_a_strict_server_accepts_the_request(method: str) -> None:
    server = StrictServer(b"done")
    answer = call(lambda _, __: server, path="/x", method=method, message=b"hello", deadline=time.monotonic() + 60)
    assert answer == b"done"
    assert server.received == b"\x00\x00\x00\x00\x05hello"
    assert dict(server.fields)[b":path"] == method.encode()


def test_pseudo_header_fields_come_first() -> None:
    server = StrictServer(b"")
    call(lambda _, __: server, path="/x", method="/a.B/C", message=b"", deadline=time.monotonic() + 60)
    names = [name for name, _ in server.fields]
    assert {name for name in names if name.startswith(b":")} == {b":method", b":scheme", b":authority", b":path"}
    assert not [pair for pair in pairwise(names) if not pair[0].startswith(b":") and pair[1].startswith(b":")]
    assert [(name, value) for name, value in server.fields if name == b"te"] == [(b"te", b"trailers")]


@pytest.mark.parametrize("size", [70_000, 900_000])
def test_flow_control_holds_for_large_messages(size: int) -> None:
    server = StrictServer(b"y" * size)
    assert size < MAX_RESPONSE
    deadline = time.monotonic() + 60
    answer = call(lambda _, __: server, path="/x", method="/a.B/C", message=b"x" * size, deadline=deadline)
    assert answer == b"y" * size
    assert server.received[5:] == b"x" * size
