"""Calls over a connection that misbehaves, and over real sockets that do."""

import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from coil_cni.error import INTERNAL, IO_FAILURE, TRY_AGAIN_LATER, CniError
from coil_cni.grpc import call, connect

METHOD = "/pkg.cnirpc.CNI/Del"


class Scripted:
    """A connection that gives the scripted octets, one piece per read, or raises what is in the script."""

    def __init__(self, *script: bytes | Exception) -> None:
        self._script = iter(script)
        self.sent = b""
        self.closed = False

    def settimeout(self, seconds: float, /) -> None:
        assert 0 < seconds <= 60

    def sendall(self, data: bytes, /) -> None:
        self.sent += data

    def recv(self, size: int, /) -> bytes:
        item = next(self._script, b"")
        if isinstance(item, Exception):
            raise item
        return item[:size]

    def close(self) -> None:
        self.closed = True


def code_of(connector: Callable[[str, float], Scripted], *, seconds: float = 60) -> int:
    with pytest.raises(CniError) as raised:
        call(connector, path="/x", method=METHOD, message=b"", deadline=time.monotonic() + seconds)
    return raised.value.code


def refusing(error: Exception) -> Callable[[str, float], Scripted]:
    def connector(_: str, __: float) -> Scripted:
        raise error

    return connector


def frame(kind: int, flags: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags, 0, 0, 0, 1)) + payload


def field(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


def response(*fields: tuple[bytes, bytes], body: bytes = b"") -> bytes:
    trailers = frame(1, 5, b"".join(field(*pair) for pair in fields))
    return frame(1, 4, b"\x88") + (frame(0, 0, body) if body else b"") + trailers


OK = (b"grpc-status", b"0")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FileNotFoundError(2, "No such file"), TRY_AGAIN_LATER),
        (ConnectionRefusedError(111, "refused"), TRY_AGAIN_LATER),
        (BlockingIOError(11, "backlog full for the whole time"), TRY_AGAIN_LATER),
        (PermissionError(13, "Permission denied"), IO_FAILURE),
        (OSError(24, "Too many open files"), IO_FAILURE),
    ],
)
def test_connecting_fails(error: Exception, code: int) -> None:
    assert code_of(refusing(error)) == code


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ([b""], TRY_AGAIN_LATER),
        ([frame(1, 4, b"\x88")[:5], b""], TRY_AGAIN_LATER),
        ([ConnectionResetError(104, "reset")], TRY_AGAIN_LATER),
        ([BrokenPipeError(32, "pipe")], TRY_AGAIN_LATER),
        ([TimeoutError("timed out")], TRY_AGAIN_LATER),
        ([frame(3, 0, b"\x00\x00\x00\x07")], TRY_AGAIN_LATER),
        ([frame(3, 0, b"\x00\x00\x00\x02")], INTERNAL),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], INTERNAL),
        ([frame(1, 5, b"\x8d")], INTERNAL),  # :status 404
        ([frame(1, 5, b"\x88")], INTERNAL),  # no grpc-status
        ([response(OK)], INTERNAL),  # no message
        ([response(OK, body=b"\x01\x00\x00\x00\x01x")], INTERNAL),  # compressed
        ([response(OK, body=b"\x00\x00\x00\x00\x09x")], INTERNAL),  # cut short
        ([response(OK, body=b"\x00\x00\x00\x00\x00" * 2)], INTERNAL),  # two messages
        ([response((b"grpc-status", b"14"))], TRY_AGAIN_LATER),
        ([response((b"grpc-status", b"14"), (b"grpc-status-details-bin", b"!!!"))], TRY_AGAIN_LATER),
        ([response((b"grpc-status", b"nine"))], INTERNAL),
    ],
    ids=lambda value: repr(value)[:70],
)
def test_answers_that_are_none(script: list[bytes | Exception], code: int) -> None:
    connection = Scripted(*script)
    assert code_of(lambda _, __: connection) == code
    assert connection.closed


def test_an_answer_octet_by_octet() -> None:
    octets = response(OK, body=b"\x00\x00\x00\x00\x02hi")
    connection = Scripted(*(octets[i : i + 1] for i in range(len(octets))))
    deadline = time.monotonic() + 60
    assert call(lambda _, __: connection, path="/x", method=METHOD, message=b"", deadline=deadline) == b"hi"
    assert connection.closed


@pytest.mark.parametrize(
    ("encoded", "decoded"),
    [
        (b"plain", "plain"),
        (b"50%25", "50%"),
        (b"%E2%9C%93 done", "✓ done"),
        (b"100% of it", "100% of it"),
        (b"%", "%"),
        (b"%4", "%4"),
        (b"% 4", "% 4"),
        (b"%  ", "%  "),
        (b"%zz%41", "%zzA"),
        (b"%ff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_percent_decoding(encoded: bytes, decoded: str) -> None:
    connection = Scripted(response((b"grpc-status", b"13"), (b"grpc-message", encoded)))
    with pytest.raises(CniError) as raised:
        call(lambda _, __: connection, path="/x", method=METHOD, message=b"", deadline=time.monotonic() + 60)
    assert raised.value.msg == decoded


def test_no_time_left() -> None:
    connection = Scripted()
    assert code_of(lambda _, __: connection, seconds=-1) == TRY_AGAIN_LATER
    assert connection.sent == b""


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        with pytest.raises(CniError, match="in time"):
            call(connect, path=path, method=METHOD, message=b"", deadline=time.monotonic() + 0.02)


def test_a_server_that_never_accepts(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(0)
        with closing(connect(path, 1)), pytest.raises(CniError, match="in time") as raised:  # the first fills it
            call(connect, path=path, method=METHOD, message=b"", deadline=time.monotonic() + 0.02)
        assert raised.value.code == TRY_AGAIN_LATER
