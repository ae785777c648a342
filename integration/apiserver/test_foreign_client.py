"""A C-core client of a coild that runs as on any node: no gRPC client but the plugin's own needs to be ours.

What a client may do wrong is in tests/coil/cnirpc, who may connect at all in integration/plugin.
"""

import json
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from integration.apiserver.conftest import SUBNETS, CoilNode
from integration.apiserver.runtime import addresses_of
from integration.apiserver.sandbox import Sandbox
from tests.coil.cnirpc.scripted_service import foreign_call, foreign_channel, foreign_error
from tests.coil_cni.protobuf import protobuf_message

pytestmark = pytest.mark.apiserver

MakePod = Callable[[str], Sandbox]
CROWD = 8


@pytest.fixture
def channel(coil: CoilNode) -> Iterator[grpc.Channel]:
    with foreign_channel(coil.node.socket) as channel:
        yield channel


def arguments(pod: Sandbox, **conf: Any) -> dict[str, Any]:
    """What the plugin would send."""
    return {
        "container_id": pod.container_id,
        "netns": pod.netns,
        "ifname": "eth0",
        "args": {
            "K8S_POD_NAMESPACE": pod.pod.namespace,
            "K8S_POD_NAME": pod.pod.name,
            "K8S_POD_INFRA_CONTAINER_ID": pod.container_id,
            "IS_CHAINED": "false",
        },
        "stdin_data": json.dumps({"cniVersion": "1.1.0", "name": "pods", "type": "coil"} | conf).encode(),
    }


def result_of(data: bytes) -> dict[str, Any]:
    response = protobuf_message("pkg.cnirpc.AddResponse")
    response.ParseFromString(data)
    result: dict[str, Any] = json.loads(response.result)
    return result


def refused(coil: CoilNode, method: str, **fields: Any) -> tuple[grpc.StatusCode, Any]:
    """The status and its detail, a CNIError."""
    with pytest.raises(grpc.RpcError) as raised:
        foreign_call(coil.node.socket, method, **fields)
    return foreign_error(raised.value)


@pytest.mark.parametrize("namespace", ["dual", "v4", "v6"])
def test_the_life_of_a_pod(coil: CoilNode, make_pod: MakePod, namespace: str) -> None:
    pod = make_pod(namespace)
    result = result_of(foreign_call(coil.node.socket, "Add", **arguments(pod)))
    assert result["cniVersion"] == "1.0.0"
    assert len(result["ips"]) == len(SUBNETS[namespace])
    assert pod.kernel.global_addresses() == {*addresses_of(result)}
    assert foreign_call(coil.node.socket, "Check", **arguments(pod)) == b""
    # What one client has added is there for another one.
    coil.runtime.check(pod, cached=result)
    assert foreign_call(coil.node.socket, "Del", **arguments(pod)) == b""
    assert pod.kernel.link("eth0") is None
    status, detail = refused(coil, "Check", **arguments(pod))
    assert (status, detail.code) == (grpc.StatusCode.NOT_FOUND, 3)


def test_a_gc(coil: CoilNode, make_pod: MakePod) -> None:
    stays, goes = make_pod("dual"), make_pod("dual")
    for pod in (stays, goes):
        foreign_call(coil.node.socket, "Add", **arguments(pod, name="of-foreigners"))
    valid = [{"containerID": stays.container_id, "ifname": "eth0"}]
    conf = {"name": "of-foreigners", "cni.dev/valid-attachments": valid}
    assert foreign_call(coil.node.socket, "GC", stdin_data=json.dumps(conf).encode()) == b""
    assert goes.kernel.link("eth0") is None
    assert foreign_call(coil.node.socket, "Check", **arguments(stays)) == b""


def test_an_error_comes_with_its_reason_before_the_callers_deadline(coil: CoilNode, make_pod: MakePod) -> None:
    status, detail = refused(coil, "Add", seconds=3, **arguments(make_pod("astray")))
    assert (status, detail.code) == (grpc.StatusCode.UNAVAILABLE, 11)
    assert "nowhere" in detail.msg


def test_pods_that_are_added_at_once_on_one_connection(
    coil: CoilNode, make_pod: MakePod, channel: grpc.Channel
) -> None:
    pods = [make_pod("dual") for _ in range(CROWD)]
    method = channel.unary_unary("/pkg.cnirpc.CNI/Add")
    requests = [protobuf_message("pkg.cnirpc.CNIArgs", **arguments(pod)).SerializeToString() for pod in pods]
    with ThreadPoolExecutor(CROWD) as threads:
        results = [result_of(data) for data in threads.map(lambda data: method(data, timeout=60), requests)]
    given = [address for result in results for address in addresses_of(result)]
    assert len(set(given)) == 2 * CROWD
    for pod, result in zip(pods, results, strict=True):
        assert pod.kernel.global_addresses() == {*addresses_of(result)}


def test_health_and_reflection(coil: CoilNode, channel: grpc.Channel) -> None:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    assert check(HealthCheckRequest(service="pkg.cnirpc.CNI"), timeout=60).status == HealthCheckResponse.SERVING
    reflect = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=ServerReflectionRequest.SerializeToString,
        response_deserializer=ServerReflectionResponse.FromString,
    )
    [answer] = reflect(iter([ServerReflectionRequest(list_services="")]), timeout=60)
    assert "pkg.cnirpc.CNI" in {service.name for service in answer.list_services_response.service}
    assert channel.unary_unary("/pkg.cnirpc.CNI/Status")(b"", timeout=60) == b""
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/pkg.cnirpc.CNI/Repair")(b"", timeout=60)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_the_socket_is_roots(coil: CoilNode) -> None:
    found = coil.node.socket.stat()
    assert (stat.filemode(found.st_mode), found.st_uid) == ("srw-------", 0)
