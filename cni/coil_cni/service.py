"""What coild is asked for each command, and what its answer means to the runtime.

The result of an ADD comes in the format of 1.0.0, see protos/cni.proto, and leaves in the version that the runtime
asked for; 1.1.0 only added keys that may be absent. From 0.3.0 until then the entries of `ips` had a `version`, "4" or
"6" (SPEC.md of 1.0.0, "Changes"). Before 0.3.0 a result held one address of each family and no interfaces (SPEC.md of
0.2.0, "Result").
"""

from select import poll
from time import monotonic

from coil_cni.error import (
    DECODING_FAILURE,
    NOT_AVAILABLE,
    TRY_AGAIN_LATER,
    CniError,
    UnimplementedError,
    UnreachableError,
)
from coil_cni.grpc import call
from coil_cni.json_text import decode, encode
from coil_cni.message import decode_add_response, decode_serving, encode_cni_args

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from coil_cni.grpc import Connect
    from coil_cni.invocation import Invocation
    from coil_cni.netconf import NetConf

    RecordDelete = Callable[[str, Invocation, CniError], None]

_METHODS = {
    "ADD": "/pkg.cnirpc.CNI/Add",
    "DEL": "/pkg.cnirpc.CNI/Del",
    "CHECK": "/pkg.cnirpc.CNI/Check",
    "GC": "/pkg.cnirpc.CNI/GC",
}
_STATUS = "/pkg.cnirpc.CNI/Status"
_HEALTH = "/grpc.health.v1.Health/Check"
STATUS_GRACE = 10.0
"""Seconds in which a coild that is being restarted may come back before STATUS fails: that makes the node NotReady, and
Kubernetes then takes its running pods, which are well, out of their Services."""
_STATUS_PAUSE = 0.25


def ask(
    connect: "Connect",
    invocation: "Invocation",
    conf: "NetConf",
    stdin: bytes,
    *,
    deadline: float,
    record_delete: "RecordDelete",
) -> bytes:
    """What goes to standard output, b"" for all but ADD. Raises CniError.

    A DEL for which coild cannot be reached is recorded for it (`coil_cni.recorded_delete`), and has succeeded.
    """
    if invocation.command == "STATUS":
        _await_status(connect, conf, deadline)
        return b""
    message = encode_cni_args(invocation, conf, stdin)
    method = _METHODS[invocation.command]
    try:
        response = call(connect, path=conf.socket, method=method, message=message, deadline=deadline)
    except UnimplementedError:
        if invocation.command != "GC":
            raise
        return b""  # a coild that is not told what lives finds out by itself
    except UnreachableError as error:
        if invocation.command != "DEL":
            raise
        record_delete(conf.socket, invocation, error)
        return b""
    if invocation.command != "ADD":
        return b""
    if conf.prev_result is not None:
        # In a chain the result so far is handed on; coild has only added to what the pod's namespace holds.
        return encode(conf.prev_result | {"cniVersion": conf.version})
    try:
        result = decode_add_response(response)
    except ValueError as error:
        raise CniError(DECODING_FAILURE, "coild's answer is not an AddResponse", str(error)) from None
    return convert_result(result, conf.version)


def _await_status(connect: "Connect", conf: "NetConf", deadline: float) -> None:
    """`_check_status`, again and again for the time of grace while it raises CniError(50)."""
    last = min(deadline, monotonic() + STATUS_GRACE) - _STATUS_PAUSE
    while True:
        try:
            return _check_status(connect, conf, deadline)
        except CniError as error:
            if error.code != NOT_AVAILABLE or monotonic() > last:
                raise
        poll().poll(_STATUS_PAUSE * 1000)  # of nothing: the executable has no time.sleep


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
        _raise_reason(connect, conf, deadline)


def _raise_reason(connect: "Connect", conf: "NetConf", deadline: float) -> None:
    """Raise CniError(50) with coild's own words, if it has any."""
    try:
        call(connect, path=conf.socket, method=_STATUS, message=b"", deadline=deadline)
    except CniError as error:
        if error.code == NOT_AVAILABLE:
            raise
    raise CniError(NOT_AVAILABLE, "coild does not serve pods yet, or no longer")


_CURRENT = ("1.0.0", "1.1.0")
_ONE_PER_FAMILY = ("0.1.0", "0.2.0")


def convert_result(data: bytes, version: str) -> bytes:
    """The result for the runtime, JSON for JSON. Raises CniError(6) when coild's answer is no result."""
    try:
        result = decode(data)
    except ValueError as error:
        raise CniError(DECODING_FAILURE, "coild's result is not JSON", str(error)) from None
    if not isinstance(result, dict):
        raise CniError(DECODING_FAILURE, "coild's answer is not a CNI result")
    ips = _entries(result, "ips", "address")
    routes = _entries(result, "routes", "dst")
    if version in _CURRENT and result.get("cniVersion") == version and not any("version" in ip for ip in ips):
        return data  # in that format already
    if version in _ONE_PER_FAMILY:
        return encode(_one_per_family(result, ips, routes) | {"cniVersion": version})
    for ip in ips:
        ip.pop("version", None)
        if version not in _CURRENT:
            ip["version"] = _family(ip["address"])
    return encode(result | {"cniVersion": version})


def _entries(result: dict[str, object], key: str, address: str) -> list[dict[str, object]]:
    entries = result.get(key) or []
    if not isinstance(entries, list):
        raise CniError(DECODING_FAILURE, f"coild's result has {key} that are no list")
    if not all(isinstance(entry, dict) and isinstance(entry.get(address), str) for entry in entries):
        raise CniError(DECODING_FAILURE, f"coild's result has an entry in {key} without {address}")
    return entries


def _family(address: object) -> str:
    return "6" if ":" in str(address) else "4"


def _one_per_family(
    result: dict[str, object], ips: list[dict[str, object]], routes: list[dict[str, object]]
) -> dict[str, object]:
    """The first address of each family, with the routes of that family."""
    old: dict[str, object] = {}
    for ip in ips:
        family = _family(ip["address"])
        if f"ip{family}" in old:
            continue
        old[f"ip{family}"] = (
            {"ip": ip["address"]}
            | ({"gateway": ip["gateway"]} if "gateway" in ip else {})
            | {"routes": [_destination(route) for route in routes if _family(route["dst"]) == family]}
        )
    if "dns" in result:
        old["dns"] = result["dns"]
    return old


def _destination(route: dict[str, object]) -> dict[str, object]:
    return {key: route[key] for key in ("dst", "gw") if key in route}
