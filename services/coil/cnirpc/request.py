"""The request of a unary call, read within bounds: one whole, uncompressed message of a size that a call can have.

grpclib takes whatever comes, up to the 4 GiB that a length can say; and what it cannot read is to it a defect of the
service. Every refusal here has the one detail that a caller of the CNI service expects.
"""

from typing import TYPE_CHECKING, Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.status import grpc_error

if TYPE_CHECKING:
    from grpclib.server import Stream

MAX_REQUEST = 4 << 20
"""Octets, the bound of gRPC's own servers. A plugin's request has some thousands, at most two million."""

_PREFIX = 5  # a flag and the length, PROTOCOL-HTTP2 "Length-Prefixed-Message"


class BoundedStream:
    """What a generated handler uses of a `grpclib.server.Stream`."""

    def __init__(self, stream: "Stream[Any, Any]") -> None:
        self._stream = stream

    async def recv_message(self) -> Any:
        """Raises GRPCError (UNIMPLEMENTED for compression, RESOURCE_EXHAUSTED for the size), or CniError."""
        prefix = await self._read(_PREFIX)
        if prefix[0]:
            raise _refusal(Status.UNIMPLEMENTED, CniErrorCode.UNSUPPORTED_FIELD, "the request is compressed")
        if (length := int.from_bytes(prefix[1:], "big")) > MAX_REQUEST:
            msg = f"the request has {length} octets, more than {MAX_REQUEST}"
            raise _refusal(Status.RESOURCE_EXHAUSTED, CniErrorCode.INVALID_NETWORK_CONFIG, msg)
        data = await self._read(length)
        stream = self._stream
        try:
            return stream._codec.decode(data, stream._recv_type)
        except Exception as error:  # of any codec: it has no other input
            raise CniError(CniErrorCode.DECODING_FAILURE, "the request cannot be read", str(error)) from error

    async def send_message(self, message: Any) -> None:
        await self._stream.send_message(message)

    async def _read(self, size: int) -> bytes:
        try:
            data = await self._stream._stream.recv_data(size)
        except AssertionError as error:  # so grpclib says that the caller has ended the stream before
            raise CniError(CniErrorCode.DECODING_FAILURE, "the request is not whole") from error
        if len(data) < size:
            raise CniError(CniErrorCode.DECODING_FAILURE, "there is no request")
        return data


def _refusal(status: Status, code: CniErrorCode, msg: str) -> GRPCError:
    return GRPCError(status, msg, grpc_error(CniError(code, msg)).details)
