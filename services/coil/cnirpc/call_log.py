"""A line in the log for each call that has ended: which pod's it was, how it ended, and how long it took.

The event and the names are those that Coil in Go writes, which are go-grpc-middleware's and, for what a CNI request is
about, its own: whoever searches the logs for `finished call`, `grpc.code` or `grpc.request.pod.name` finds them here.
The level follows from the code as there. A STATUS that succeeds is a detail: runtimes ask every few seconds.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from coil.cnirpc.call_gate import MeasuredCall, split_method
from coil.cnirpc.messages import CniArgs

EVENT: Final = "finished call"

_POD_NAME, _POD_NAMESPACE = "K8S_POD_NAME", "K8S_POD_NAMESPACE"
_ERRORS: Final = frozenset({"Unknown", "Unimplemented", "Internal", "DataLoss"})
_WARNINGS: Final = frozenset(
    {
        *("DeadlineExceeded", "PermissionDenied", "ResourceExhausted", "FailedPrecondition"),
        *("Aborted", "OutOfRange", "Unavailable"),
    }
)


class CallLog:
    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log

    def write(self, method: str, request: CniArgs | None, call: MeasuredCall) -> None:
        """`call` has ended. Without a `request`, none was read: the call was sent away before, or made no sense."""
        service, name = split_method(method)
        fields: dict[str, Any] = {
            "grpc.service": service,
            "grpc.method": name,
            "grpc.code": call.code,
            "grpc.time_ms": round(call.seconds * 1000, 3),
            **(_describe(request) if request is not None else {}),
        }
        if call.error:
            fields["grpc.error"] = call.error
        self._writer(name, call.code)(EVENT, **fields)

    def _writer(self, name: str, code: str) -> Callable[..., Any]:
        if code in _ERRORS:
            return self._log.error
        if code in _WARNINGS:
            return self._log.warning
        return self._log.debug if (name, code) == ("Status", "OK") else self._log.info


def _describe(request: CniArgs) -> Mapping[str, str]:
    """What the request says of its subject; a GC, for example, says nothing of a pod."""
    found = {
        "grpc.request.pod.name": request.args.get(_POD_NAME, ""),
        "grpc.request.pod.namespace": request.args.get(_POD_NAMESPACE, ""),
        "grpc.request.netns": request.netns,
        "grpc.request.ifname": request.ifname,
        "grpc.request.container_id": request.container_id,
    }
    return {name: value for name, value in found.items() if value}
