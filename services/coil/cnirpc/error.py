"""The error document of the CNI specification: as the exception that coild's services raise, and as a gRPC status.

The one detail in `grpc-status-details-bin` is a CNIError. grpclib's own codec packs details with protobuf's `Any.Pack`,
which betterproto messages do not have; the peer would then wait for its deadline. Both `Server` and `Channel` take the
codec from here. Source of the shape: google/rpc/status.proto.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import List  # noqa: UP035 - betterproto resolves its fields by this name

import betterproto
from betterproto.lib.google.protobuf import Any
from grpclib.const import Status
from grpclib.encoding.base import StatusDetailsCodecBase
from grpclib.exceptions import GRPCError

from coil.cnirpc import messages


class CniErrorCode(IntEnum):
    """Well-known codes (CNI specification, "Error"), UNKNOWN and INTERNAL as Coil has always had them, and from 100 on
    those that the specification leaves to plugins: of pods that are ports of a network (docs/neutron.md).
    """

    UNKNOWN = 0
    INCOMPATIBLE_CNI_VERSION = 1
    UNSUPPORTED_FIELD = 2
    UNKNOWN_CONTAINER = 3
    INVALID_ENVIRONMENT_VARIABLES = 4
    IO_FAILURE = 5
    DECODING_FAILURE = 6
    INVALID_NETWORK_CONFIG = 7
    TRY_AGAIN_LATER = 11
    NOT_AVAILABLE = 50
    PORT_ANNOTATION_UNREADABLE = 101
    PORT_GONE = 102
    PORT_TYPE_UNKNOWN = 103
    PORT_BIND_FAILED = 104
    PORT_BIND_TIMED_OUT = 105
    PORT_NOT_ACTIVE = 106
    POD_FORBIDDEN = 107
    PORT_IN_USE = 108
    INTERNAL = 999


class CniError(Exception):
    """A call failed. `msg` is one sentence for the pod's event, `details` whatever helps to find the cause."""

    def __init__(self, code: CniErrorCode, msg: str, details: str = "") -> None:
        super().__init__(code, msg, details)
        self.code = code
        self.msg = msg
        self.details = details

    def __str__(self) -> str:
        return f"{self.msg}: {self.details}" if self.details else self.msg


TYPE_URL = "type.googleapis.com/pkg.cnirpc.CNIError"

MAX_MSG = 512
MAX_DETAILS = 2048
"""Characters. A status travels in header fields, and C-core peers refuse more than 8 KiB of them; `msg` is in
there three times, once percent-encoded, and the details in base64."""

_STATUS_OF_CODE = {
    CniErrorCode.UNSUPPORTED_FIELD: Status.INVALID_ARGUMENT,
    CniErrorCode.INCOMPATIBLE_CNI_VERSION: Status.INVALID_ARGUMENT,
    CniErrorCode.INVALID_ENVIRONMENT_VARIABLES: Status.INVALID_ARGUMENT,
    CniErrorCode.DECODING_FAILURE: Status.INVALID_ARGUMENT,
    CniErrorCode.INVALID_NETWORK_CONFIG: Status.INVALID_ARGUMENT,
    CniErrorCode.UNKNOWN_CONTAINER: Status.NOT_FOUND,
    CniErrorCode.TRY_AGAIN_LATER: Status.UNAVAILABLE,
    CniErrorCode.NOT_AVAILABLE: Status.UNAVAILABLE,
    CniErrorCode.PORT_BIND_TIMED_OUT: Status.UNAVAILABLE,
    CniErrorCode.PORT_NOT_ACTIVE: Status.UNAVAILABLE,
    CniErrorCode.POD_FORBIDDEN: Status.PERMISSION_DENIED,
}


@dataclass(eq=False, repr=False)
class RpcStatus(betterproto.Message):
    """google.rpc.Status."""

    code: int = betterproto.int32_field(1)
    message: str = betterproto.string_field(2)
    details: List[Any] = betterproto.message_field(3)  # noqa: UP006, RUF009


class CniStatusCodec(StatusDetailsCodecBase):
    """Details are a sequence of CNIError messages; details of other types are left out when decoding."""

    def encode(self, status: Status, message: str | None, details: Sequence[messages.CniError]) -> bytes:
        packed = [Any(type_url=TYPE_URL, value=bytes(detail)) for detail in details]
        return bytes(RpcStatus(code=status.value, message=message or "", details=packed))

    def decode(self, status: Status, message: str | None, data: bytes) -> list[messages.CniError]:
        details = RpcStatus().parse(data).details
        return [messages.CniError().parse(detail.value) for detail in details if detail.type_url == TYPE_URL]


def grpc_error(error: CniError) -> GRPCError:
    """The status to answer a call with. Overlong texts are cut, see MAX_MSG."""
    msg = _cut(error.msg, MAX_MSG)
    detail = messages.CniError(
        code=messages.ErrorCode(error.code.value), msg=msg, details=_cut(error.details, MAX_DETAILS)
    )
    return GRPCError(_STATUS_OF_CODE.get(error.code, Status.INTERNAL), msg, [detail])


def cni_error(error: GRPCError) -> CniError:
    """The error that a peer answered with; INTERNAL when its status carries no CNIError or an unknown code."""
    match error.details:
        case [messages.CniError() as detail]:
            try:
                return CniError(CniErrorCode(detail.code.value), detail.msg, detail.details)
            except ValueError:
                pass
    return CniError(CniErrorCode.INTERNAL, error.message or "", error.status.name)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
