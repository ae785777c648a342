"""The messages of protos/cni.proto that the plugin handles, and those around them, in protobuf's wire format.

Around them are google.rpc.Status and the answer of the standard health service.

Only what these messages use: varints and length-delimited fields. Unknown fields are skipped, as protobuf wants.
Source: the encoding chapter of the protobuf documentation.
"""

from coil_cni.error import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from coil_cni.invocation import Invocation
    from coil_cni.netconf import NetConf

_ERROR_TYPE = b"/pkg.cnirpc.CNIError"
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def encode_cni_args(call: "Invocation", conf: "NetConf", stdin: bytes) -> bytes:
    args = call.pod_args | {"IS_CHAINED": "true" if conf.prev_result is not None else "false"}
    return b"".join(
        (
            _text(1, call.container_id),
            _text(2, call.netns),
            _text(3, call.ifname),
            *(_bytes(4, _text(1, key) + _text(2, value)) for key, value in args.items()),
            _text(5, call.path),
            _bytes(6, stdin),
            *(_text(7, ip) for ip in conf.ips),
            *(
                _bytes(8, _text(1, name) + b"\x10" + _varint(in_sandbox))
                for name, in_sandbox in conf.interfaces.items()
            ),
        )
    )


def decode_add_response(data: bytes) -> bytes:
    """AddResponse.result; ValueError when `data` is not a message."""
    result = b""
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            result = value
    return result


def decode_serving(data: bytes) -> bool:
    """Whether a grpc.health.v1.HealthCheckResponse says SERVING; ValueError when `data` is not a message."""
    return dict(_fields(data)).get(1) == 1


def decode_status(data: bytes) -> CniError | None:
    """The CNIError among the details of a google.rpc.Status; ValueError when `data` is not a message."""
    for number, detail in _fields(data):
        if number == 3 and isinstance(detail, bytes):
            packed = dict(_fields(detail))
            type_url, value = packed.get(1), packed.get(2, b"")
            if isinstance(type_url, bytes) and type_url.endswith(_ERROR_TYPE) and isinstance(value, bytes):
                return _decode_error(value)
    return None


def _decode_error(data: bytes) -> CniError:
    code, texts = 0, {2: "", 3: ""}
    for number, value in _fields(data):
        if isinstance(value, bytes):
            texts[number] = value.decode(errors="replace")
        elif number == 1:
            code = value
    return CniError(code, texts[2], texts[3])


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _DELIMITED) + _varint(len(value)) + value


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode()) if value else b""


def _read_varint(data: bytes, start: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(start, min(start + 10, len(data))):
        value |= (data[position] & 0x7F) << shift
        if data[position] < 0x80:
            return value, position + 1
        shift += 7
    raise ValueError("a varint without end")


def _fields(data: bytes) -> "Iterator[tuple[int, int | bytes]]":
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, position = _read_varint(data, position)
            yield number, value
            continue
        if wire_type == _DELIMITED:
            length, position = _read_varint(data, position)
        elif wire_type in (_FIXED64, _FIXED32):
            length = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type}")
        if position + length > len(data):
            raise ValueError("a field beyond the end of its message")
        yield number, data[position : position + length]
        position += length
