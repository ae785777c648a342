"""What coild is asked for each command, and what its answer means to the runtime."""

from coil_cni.error import DECODING_FAILURE, NOT_AVAILABLE, TRY_AGAIN_LATER, CniError, UnimplementedError
from coil_cni.grpc import call
from coil_cni.message import decode_add_response, decode_serving, encode_cni_args

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coil_cni.grpc import Connect
    from coil_cni.invocation import Invocation
    from coil_cni.netconf import NetConf

_METHODS = {
    "ADD": "/pkg.cnirpc.CNI/Add",
    "DEL": "/pkg.cnirpc.CNI/Del",
    "CHECK": "/pkg.cnirpc.CNI/Check",
    "GC": "/pkg.cnirpc.CNI/GC",
}
_HEALTH = "/grpc.health.v1.Health/Check"


def ask(connect: "Connect", invocation: "Invocation", conf: "NetConf", stdin: bytes, deadline: float) -> bytes:
    """What goes to standard output, b"" for all but ADD. Raises CniError."""
    if invocation.command == "STATUS":
        _check_status(connect, conf, deadline)
        return b""
    message = encode_cni_args(invocation, conf, stdin)
    method = _METHODS[invocation.command]
    try:
        response = call(connect, path=conf.socket, method=method, message=message, deadline=deadline)
    except UnimplementedError:
        if invocation.command != "GC":
            raise
        return b""  # a coild that is not told what lives finds out by itself
    if invocation.command != "ADD":
        return b""
    # Late, as only an ADD has a result.
    from coil_cni.json_text import encode
    from coil_cni.result import convert_result

    if conf.prev_result is not None:
        # In a chain the result so far is handed on; coild has only added to what the pod's namespace holds.
        return encode(conf.prev_result | {"cniVersion": conf.version})
    try:
        result = decode_add_response(response)
    except ValueError as error:
        raise CniError(DECODING_FAILURE, "coild's answer is not an AddResponse", str(error)) from None
    return convert_result(result, conf.version)


def _check_status(connect: "Connect", conf: "NetConf", deadline: float) -> None:
    """Returns when an ADD would be served. Raises CniError(50) when it would not, for now."""
    try:
        answer = call(connect, path=conf.socket, method=_HEALTH, message=b"", deadline=deadline)
        serving = decode_serving(answer)
    except UnimplementedError:
        serving = True  # it answers; the health service is no part of what a server must have
    except ValueError as error:
        raise CniError(DECODING_FAILURE, "coild's answer is not a HealthCheckResponse", str(error)) from None
    except CniError as error:
        if error.code != TRY_AGAIN_LATER:
            raise
        raise CniError(NOT_AVAILABLE, error.msg, error.details) from None
    if not serving:
        raise CniError(NOT_AVAILABLE, "coild does not serve pods yet, or no longer")
