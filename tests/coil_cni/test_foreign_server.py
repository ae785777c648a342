"""The plugin against a C-core server: results, errors, sizes, and what the server sees of a call."""

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.coil_cni.edges import ENVIRON, NETCONF, Outcome, run_plugin
from tests.coil_cni.foreign_server import Handler, abort, foreign_server
from tests.coil_cni.protobuf import protobuf_message
from tests.coil_cni.test_service import OLD, OLDEST, RESULT


def call(tmp_path: Path, command: str, handler: Handler, **conf: Any) -> Outcome:
    path = tmp_path / "coild.sock"
    stdin = json.dumps(NETCONF | {"socket": str(path)} | conf).encode()
    with foreign_server(path, {command.capitalize(): handler}):
        return run_plugin(ENVIRON | {"CNI_COMMAND": command}, stdin)


def empty(_: Any, __: grpc.ServicerContext) -> Any:
    from google.protobuf.empty_pb2 import Empty

    return Empty()


def answer(result: bytes) -> Handler:
    return lambda _, __: protobuf_message("pkg.cnirpc.AddResponse", result=result)


@pytest.mark.parametrize(("version", "expected"), [("1.0.0", RESULT), ("0.4.0", OLD), ("0.2.0", OLDEST)])
def test_add(tmp_path: Path, version: str, expected: dict[str, Any]) -> None:
    outcome = call(tmp_path, "ADD", answer(json.dumps(RESULT).encode()), cniVersion=version)
    assert (outcome.status, outcome.document) == (0, expected)


def test_add_in_a_chain_hands_on_the_previous_result(tmp_path: Path) -> None:
    previous = OLD | {"dns": {"nameservers": ["10.0.0.53"]}}
    outcome = call(tmp_path, "ADD", answer(b"{}"), cniVersion="0.4.0", prevResult=previous)
    assert (outcome.status, outcome.document) == (0, previous)


@pytest.mark.parametrize("command", ["DEL", "CHECK"])
def test_del_and_check_print_nothing(tmp_path: Path, command: str) -> None:
    outcome = call(tmp_path, command, empty)
    assert (outcome.status, outcome.output) == (0, b"")


def test_what_the_server_sees(tmp_path: Path) -> None:
    seen: list[Any] = []

    def handler(request: Any, context: grpc.ServicerContext) -> Any:
        seen.extend([request, context.time_remaining(), dict(context.invocation_metadata())])
        return protobuf_message("pkg.cnirpc.AddResponse", result=b"{}")

    assert call(tmp_path, "ADD", handler, prevResult=RESULT).status == 0
    request, remaining, metadata = seen
    assert (request.container_id, request.netns, request.ifname) == ("c0ffee", "/run/netns/pod", "eth0")
    assert request.path == "/opt/cni/bin"
    assert dict(request.args) == {
        "K8S_POD_NAMESPACE": "shop",
        "K8S_POD_NAME": "cart-0",
        "K8S_POD_INFRA_CONTAINER_ID": "c0ffee",
        "K8S_POD_UID": "1",
        "IS_CHAINED": "true",
    }
    assert json.loads(request.stdin_data)["prevResult"] == RESULT
    assert list(request.ips) == ["10.1.2.3", "fd00::3"]
    assert dict(request.interfaces) == {"eth0": True, "veth0": False}
    assert 0 < remaining <= 60
    assert metadata["user-agent"] == "coil-cni"


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_results_larger_than_a_window(tmp_path: Path, size: int) -> None:
    result = RESULT | {"padding": "x" * size}
    outcome = call(tmp_path, "ADD", answer(json.dumps(result).encode()))
    assert (outcome.status, outcome.document) == (0, result)


@pytest.mark.parametrize("size", [20_000, 70_000, 900_000])
def test_requests_larger_than_a_window(tmp_path: Path, size: int) -> None:
    received = []

    def handler(request: Any, _: grpc.ServicerContext) -> Any:
        received.append(json.loads(request.stdin_data)["padding"])
        return empty(None, _)

    assert call(tmp_path, "DEL", handler, padding="x" * size).status == 0
    assert received == ["x" * size]


def test_an_error_with_details(tmp_path: Path) -> None:
    detail = protobuf_message("pkg.cnirpc.CNIError", code=11, msg="pool “déjà” is dry", details="100 %\nof it")

    def handler(_: Any, context: grpc.ServicerContext) -> None:
        abort(context, grpc.StatusCode.INTERNAL, "pool", detail)

    outcome = call(tmp_path, "ADD", handler, cniVersion="0.4.0")
    assert outcome.code == 11
    assert outcome.document == {
        "cniVersion": "0.4.0",
        "code": 11,
        "msg": "pool “déjà” is dry",
        "details": "100 %\nof it",
    }


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.UNAVAILABLE, 11),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 11),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 11),
        (grpc.StatusCode.PERMISSION_DENIED, 999),
        (grpc.StatusCode.INTERNAL, 999),
    ],
)
def test_an_error_without_details(tmp_path: Path, status: grpc.StatusCode, code: int) -> None:
    outcome = call(tmp_path, "CHECK", lambda _, context: context.abort(status, "weiß nicht, 50 %"))
    assert outcome.code == code
    assert outcome.document["msg"] == "weiß nicht, 50 %"
    assert outcome.document["details"] == f"gRPC status {status.value[0]}"


def test_a_method_that_the_server_lacks(tmp_path: Path) -> None:
    path = tmp_path / "coild.sock"
    with foreign_server(path, {"Del": empty}):
        outcome = run_plugin(ENVIRON, json.dumps(NETCONF | {"socket": str(path)}).encode())
    assert outcome.code == 999
    assert outcome.document["details"] == "gRPC status 12"


@pytest.mark.parametrize("result", [b"", b"no JSON", b"[]"])
def test_a_result_that_is_none(tmp_path: Path, result: bytes) -> None:
    assert call(tmp_path, "ADD", answer(result)).code == 6


GC_CONF = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": [{"containerID": "c0ffee", "ifname": "eth0"}]}


def collect(tmp_path: Path, methods: dict[str, Handler]) -> Outcome:
    """A GC, in the environment that a runtime gives it."""
    path = tmp_path / "coild.sock"
    with foreign_server(path, methods):
        stdin = json.dumps(NETCONF | {"socket": str(path)} | GC_CONF).encode()
        return run_plugin({"CNI_COMMAND": "GC", "CNI_PATH": "/opt/cni/bin"}, stdin)


def test_gc_hands_on_what_stays(tmp_path: Path) -> None:
    seen = []

    def handler(request: Any, context: grpc.ServicerContext) -> Any:
        seen.append(json.loads(request.stdin_data)["cni.dev/valid-attachments"])
        return empty(request, context)

    outcome = collect(tmp_path, {"GC": handler})
    assert (outcome.status, outcome.output) == (0, b"")
    assert seen == [GC_CONF["cni.dev/valid-attachments"]]


def test_gc_where_the_server_has_none(tmp_path: Path) -> None:
    outcome = collect(tmp_path, {"Add": empty})
    assert (outcome.status, outcome.output) == (0, b"")


def test_gc_that_fails(tmp_path: Path) -> None:
    outcome = collect(tmp_path, {"GC": lambda _, context: context.abort(grpc.StatusCode.UNAVAILABLE, "no")})
    assert outcome.code == 11


def status(tmp_path: Path, handlers: dict[str, Handler], *, service: str = "grpc.health.v1.Health") -> Outcome:
    path = tmp_path / "coild.sock"
    with foreign_server(path, handlers, service=service):
        stdin = json.dumps(NETCONF | {"socket": str(path), "cniVersion": "1.1.0"}).encode()
        return run_plugin({"CNI_COMMAND": "STATUS", "CNI_PATH": "/opt/cni/bin"}, stdin)


@pytest.mark.parametrize(("answered", "code"), [("UNKNOWN", 50), ("SERVING", 0), ("NOT_SERVING", 50)])
def test_status_is_the_servers_health(tmp_path: Path, answered: str, code: int) -> None:
    from grpclib.health.v1.health_pb2 import HealthCheckResponse

    response = HealthCheckResponse(status=HealthCheckResponse.ServingStatus.Value(answered))
    outcome = status(tmp_path, {"Check": lambda _, __: response})
    assert (outcome.code if outcome.output else outcome.status) == code


def test_status_of_a_server_without_a_health_service(tmp_path: Path) -> None:
    outcome = status(tmp_path, {"Add": empty}, service="pkg.cnirpc.CNI")
    assert (outcome.status, outcome.output) == (0, b"")


def test_status_of_a_server_that_stops(tmp_path: Path) -> None:
    stopping: Handler = lambda _, context: context.abort(grpc.StatusCode.UNAVAILABLE, "stopping")  # noqa: E731
    assert status(tmp_path, {"Check": stopping}).code == 50
