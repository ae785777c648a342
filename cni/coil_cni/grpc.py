"""One unary gRPC call over a Unix socket, with one deadline over all of it.

Source: the gRPC project's PROTOCOL-HTTP2 document. What a failure means to the runtime is decided here: when
coild is away, stopping, overloaded or late, a later try helps (code 11); anything else is its error.
"""

import time
from _socket import AF_UNIX, SO_SNDTIMEO, SOCK_CLOEXEC, SOCK_STREAM, SOL_SOCKET
from _socket import socket as Socket  # noqa: N812

from coil_cni.error import INTERNAL, IO_FAILURE, TRY_AGAIN_LATER, CniError, UnimplementedError, UnreachableError
from coil_cni.hpack import literal
from coil_cni.http2 import Exchange, Http2Error, NotProcessedError
from coil_cni.message import decode_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Connection(Protocol):
        """The part of a socket that a call uses."""

        def settimeout(self, seconds: float, /) -> None: ...
        def sendall(self, data: bytes, /) -> None: ...
        def recv(self, size: int, /) -> bytes: ...
        def close(self) -> None: ...

    Connect = Callable[[str, float], Connection]


_RECEIVE_SIZE = 65536
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_UNIMPLEMENTED = b"12"
_TRANSIENT = (b"4", b"8", b"14")  # DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE

# Static table: 3 is :method POST, 6 is :scheme http; then literals with the static names 1 :authority and 4 :path,
# whose value follows. Pseudo-header fields come before all others (RFC 9113, section 8.3): a server resets the stream
# that has them in another order.
_PSEUDO_HEADERS = b"\x83\x86\x01\x09localhost\x04"
# Literals with the static names 31 content-type and 58 user-agent.
_HEADERS = b"\x0f\x10\x10application/grpc\x0f\x2b\x08coil-cni" + literal(b"te", b"trailers")


def connect(path: str, seconds: float) -> Socket:
    """A connection to the socket at `path`; OSError as connect(2) has it.

    connect(2) itself waits while the backlog is full, so it gets its bound from SO_SNDTIMEO (socket(7)); a
    non-blocking one would not wait at all.
    """
    # struct timeval: two native longs. A zero would mean no bound.
    interval = memoryview(bytearray(16)).cast("l")
    interval[0], interval[1] = int(seconds), int(seconds % 1 * 1_000_000) or 1
    connection = Socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    try:
        connection.setsockopt(SOL_SOCKET, SO_SNDTIMEO, interval)
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def call(connect: "Connect", *, path: str, method: str, message: bytes, deadline: float) -> bytes:
    """The answer to `message` from `method` ("/package.Service/Method") at the socket `path`.

    `deadline` is on time.monotonic. Raises CniError, and nothing else for whatever the peer may do:
    UnreachableError where there is none, or none that answers in time.
    """
    try:
        connection = connect(path, _remaining(deadline))
    except BlockingIOError:
        raise _late() from None
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise UnreachableError(TRY_AGAIN_LATER, f"coild is not there, at {path}", str(error)) from None
    except OSError as error:
        raise CniError(IO_FAILURE, f"cannot connect to coild at {path}", str(error)) from None
    try:
        exchange = _exchange(connection, method, message, deadline)
    except TimeoutError:
        raise _late() from None
    except OSError as error:
        raise CniError(TRY_AGAIN_LATER, "the connection to coild broke", str(error)) from None
    except NotProcessedError as error:
        raise CniError(TRY_AGAIN_LATER, "coild did not take the request", str(error)) from None
    except Http2Error as error:
        raise CniError(INTERNAL, "coild's answer is not HTTP/2 as it should be", str(error)) from None
    finally:
        connection.close()
    return _unwrap(dict(exchange.headers), bytes(exchange.body))


def _exchange(connection: "Connection", method: str, message: bytes, deadline: float) -> Exchange:
    milliseconds = max(1, int(_remaining(deadline) * 1000))
    headers = (
        _PSEUDO_HEADERS
        + bytes((len(method),))
        + method.encode()
        + _HEADERS
        + literal(b"grpc-timeout", b"%dm" % milliseconds)
    )
    exchange = Exchange(headers, b"\x00" + len(message).to_bytes(4, "big") + message)
    while not exchange.ended:
        if output := exchange.take_output():
            connection.settimeout(_remaining(deadline))
            connection.sendall(output)
        connection.settimeout(_remaining(deadline))
        received = connection.recv(_RECEIVE_SIZE)
        if not received:
            raise ConnectionResetError("closed before the answer was complete")
        exchange.feed(received)
    return exchange


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise _late()
    return remaining


def _late() -> CniError:
    return UnreachableError(TRY_AGAIN_LATER, "coild did not answer in time")


def _unwrap(headers: dict[bytes, bytes], body: bytes) -> bytes:
    status = headers.get(b"grpc-status")
    if headers.get(b":status") != b"200" or status is None:
        http_status = headers.get(b":status", b"none").decode(errors="replace")
        raise CniError(INTERNAL, "what answered is not a gRPC server", f"HTTP status {http_status}")
    if status != b"0":
        raise _failure(status, headers)
    length = int.from_bytes(body[1:5], "big")
    if body[:1] != b"\x00" or len(body) != 5 + length:
        raise CniError(INTERNAL, "coild's answer is not one uncompressed message")
    return body[5:]


def _failure(status: bytes, headers: dict[bytes, bytes]) -> CniError:
    try:
        error = decode_status(_base64(headers.get(b"grpc-status-details-bin", b"")))
    except ValueError:
        error = None
    if error is not None:
        return error
    code = TRY_AGAIN_LATER if status in _TRANSIENT else INTERNAL
    text = _percent_decode(headers.get(b"grpc-message", b"")) or "coild failed"
    kind = UnimplementedError if status == _UNIMPLEMENTED else CniError
    return kind(code, text, f"gRPC status {status.decode(errors='replace')}")


def _base64(text: bytes) -> bytes:
    """RFC 4648, section 4, with or without padding. Only errors need it, and `binascii` would bring zlib along."""
    decoded = bytearray()
    text = text.rstrip(b"=")
    for start in range(0, len(text), 4):
        group = text[start : start + 4]
        bits = 0
        for octet in group:
            bits = bits << 6 | _BASE64.index(octet)
        size = len(group) * 6 // 8
        decoded += (bits >> len(group) * 6 % 8).to_bytes(size, "big")
    return bytes(decoded)


def _percent_decode(text: bytes) -> str:
    first, *rest = text.split(b"%")
    decoded = bytearray(first)
    for part in rest:
        try:
            octet = bytes.fromhex(part[:2].decode("ascii"))
        except ValueError:
            octet = b""
        # The document wants malformed escapes kept as they are.
        decoded += octet + part[2:] if len(octet) == 1 else b"%" + part
    return decoded.decode(errors="replace")
