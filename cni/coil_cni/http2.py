"""One HTTP/2 request and its response, RFC 9113: bytes in, bytes out, no input or output of its own.

The connection lives for one stream (number 1). The receive windows are opened at the start for the largest
response that is accepted, so no window updates are owed later; those of the peer are obeyed.
"""

from coil_cni.hpack import Decoder, Headers

MAX_RESPONSE = 4 << 20
"""Octets of response body, frames' padding included: gRPC's customary limit of one message."""

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = (
    0, 1, 3, 4, 5, 6, 7, 8, 9,
)  # fmt: skip
_ACK = _END_STREAM = 0x1
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
_STREAM = 1
_REFUSED_STREAM = 7
_SETTINGS_INITIAL_WINDOW_SIZE = 4
_FRAME_MAX = 16384  # SETTINGS_MAX_FRAME_SIZE, which neither side raises
_DEFAULT_WINDOW = 65535
_WINDOW_MAX = (1 << 31) - 1
_BLOCK_MAX = 65536

# ENABLE_PUSH 0 and INITIAL_WINDOW_SIZE; then the same window for the connection, which settings do not reach.
_OPENING = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + b"\x00\x00\x0c\x04\x00\x00\x00\x00\x00"
    + b"\x00\x02\x00\x00\x00\x00"
    + b"\x00\x04"
    + MAX_RESPONSE.to_bytes(4, "big")
    + b"\x00\x00\x04\x08\x00\x00\x00\x00\x00"
    + (MAX_RESPONSE - _DEFAULT_WINDOW).to_bytes(4, "big")
)
_SETTINGS_ACK = b"\x00\x00\x00\x04\x01\x00\x00\x00\x00"


class Http2Error(Exception):
    """The connection failed; whether the server acted on the request is unknown."""


class NotProcessedError(Http2Error):
    """The server says that it has not acted on the request."""


class Exchange:
    """`take_output`, send it, `feed` what comes back, until `ended`. Then `headers` (trailers too) and `body`."""

    def __init__(self, header_block: bytes, body: bytes) -> None:
        self.headers: Headers = []
        self.body = bytearray()
        self.ended = False
        self._decoder = Decoder()
        self._input = bytearray()
        self._block: bytearray | None = None  # of a header block that CONTINUATION frames go on with
        self._block_flags = 0
        self._unsent = body
        self._connection_window = self._stream_window = self._initial_window = _DEFAULT_WINDOW
        self._output = [_OPENING, _frame(_HEADERS, _END_HEADERS, header_block)]
        self._send_body()

    def take_output(self) -> bytes:
        """What is to be sent now; b"" when the exchange waits for the peer."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    def feed(self, data: bytes) -> None:
        """Digest received bytes, cut anywhere. Raises Http2Error, after which the connection is to be closed."""
        self._input += data
        while len(self._input) >= 9 and not self.ended:
            length = int.from_bytes(self._input[:3], "big")
            if length > _FRAME_MAX:
                raise Http2Error(f"a frame of {length} octets")
            if len(self._input) < 9 + length:
                return
            kind, flags = self._input[3], self._input[4]
            stream = int.from_bytes(self._input[5:9], "big") & _WINDOW_MAX
            payload = bytes(self._input[9 : 9 + length])
            del self._input[: 9 + length]
            self._receive(kind, flags, stream, payload)

    def _receive(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if (self._block is None) is (kind == _CONTINUATION):
            raise Http2Error("a header block that is not contiguous")
        if kind == _DATA and stream == _STREAM:
            self._receive_data(flags, payload)
        elif kind == _HEADERS and stream == _STREAM:
            payload = _unpad(flags, payload)
            self._block = bytearray(payload[5:] if flags & _PRIORITY else payload)
            self._block_flags = flags
            self._finish_block(flags)
        elif kind == _CONTINUATION and self._block is not None:
            self._block += payload
            self._finish_block(flags)
        elif kind == _SETTINGS and not flags & _ACK:
            self._receive_settings(payload)
        elif kind == _WINDOW_UPDATE:
            self._receive_window_update(stream, payload)
        elif kind == _PING and not flags & _ACK:
            self._output.append(_frame(_PING, _ACK, payload, stream=0))
        elif kind == _RST_STREAM and stream == _STREAM:
            code = int.from_bytes(payload, "big")
            raise (NotProcessedError if code == _REFUSED_STREAM else Http2Error)(f"stream reset, error {code}")
        elif kind == _GOAWAY:
            last = int.from_bytes(payload[:4], "big") & _WINDOW_MAX
            code = int.from_bytes(payload[4:8], "big")
            # A server that only stops taking new requests still answers this one.
            if last < _STREAM or code:
                raise (NotProcessedError if last < _STREAM else Http2Error)(f"connection ended, error {code}")
        elif kind == _PUSH_PROMISE:
            raise Http2Error("a pushed stream, which was not allowed")

    def _receive_data(self, flags: int, payload: bytes) -> None:
        self.body += _unpad(flags, payload)
        if len(self.body) > MAX_RESPONSE:
            raise Http2Error(f"a response of more than {MAX_RESPONSE} octets")
        self.ended = bool(flags & _END_STREAM)

    def _finish_block(self, flags: int) -> None:
        if self._block is None or len(self._block) > _BLOCK_MAX:
            raise Http2Error(f"a header block of more than {_BLOCK_MAX} octets")
        if not flags & _END_HEADERS:
            return
        try:
            self.headers += self._decoder.decode(bytes(self._block))
        except ValueError as error:
            raise Http2Error(f"a malformed header block: {error}") from None
        self._block = None
        self.ended = bool(self._block_flags & _END_STREAM)

    def _receive_settings(self, payload: bytes) -> None:
        for start in range(0, len(payload) - 5, 6):
            setting = int.from_bytes(payload[start : start + 2], "big")
            if setting == _SETTINGS_INITIAL_WINDOW_SIZE:
                window = int.from_bytes(payload[start + 2 : start + 6], "big")
                # It may become negative: RFC 9113, 6.9.2.
                self._stream_window += window - self._initial_window
                self._initial_window = window
        self._output.append(_SETTINGS_ACK)
        self._send_body()

    def _receive_window_update(self, stream: int, payload: bytes) -> None:
        increment = int.from_bytes(payload[:4], "big") & _WINDOW_MAX
        if stream == 0:
            self._connection_window += increment
        elif stream == _STREAM:
            self._stream_window += increment
        self._send_body()

    def _send_body(self) -> None:
        while self._unsent:
            size = min(self._connection_window, self._stream_window, _FRAME_MAX, len(self._unsent))
            if size <= 0:
                return
            chunk, self._unsent = self._unsent[:size], self._unsent[size:]
            self._connection_window -= size
            self._stream_window -= size
            self._output.append(_frame(_DATA, 0 if self._unsent else _END_STREAM, chunk))


def _frame(kind: int, flags: int, payload: bytes, *, stream: int = _STREAM) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _unpad(flags: int, payload: bytes) -> bytes:
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error("more padding than frame")
    return payload[1 : len(payload) - payload[0]]
