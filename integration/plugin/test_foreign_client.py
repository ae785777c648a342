"""A C-core client of coild's socket, as any gRPC client is one: results, errors with details, and who may connect.

coild works on a real kernel here, with addresses from a list; the whole process is in integration/apiserver.
"""

import asyncio
import json
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.netns.netns import Netns
from integration.plugin.daemon import ADDRESSES, Daemon
from tests.coil.cnirpc.scripted_service import foreign_call, foreign_channel, foreign_error
from tests.coil_cni.protobuf import protobuf_message
from tests.coil_cni.test_service import RESULT

pytestmark = pytest.mark.kernel

NOBODY = 65534
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike those that tests get."""
    with tempfile.TemporaryDirectory(prefix="coild-", dir="/run") as made:
        path = Path(made)
        path.chmod(0o755)
        yield path


@pytest.fixture
async def daemon(new_netns: Callable[[], Netns], folder: Path) -> AsyncIterator[Daemon]:
    async with Daemon.start(new_netns, folder / "coild.sock", pods=2) as daemon:
        yield daemon


def arguments(daemon: Daemon, pod: int = 0, **changes: Any) -> dict[str, Any]:
    """What the plugin would send for a pod."""
    conf = {"cniVersion": "1.1.0", "name": "k8s", "type": "coil"}
    return {
        "container_id": f"c{pod}",
        "netns": str(daemon.pods[pod].path),
        "ifname": "eth0",
        "args": {"K8S_POD_NAMESPACE": "shop", "K8S_POD_NAME": f"cart-{pod}", "IS_CHAINED": "false"},
        "path": "/opt/cni/bin",
        "stdin_data": json.dumps(conf).encode(),
    } | changes


async def ask(daemon: Daemon, method: str, **fields: Any) -> Any:
    """The response, as protobuf reads it."""
    data = await asyncio.to_thread(foreign_call, daemon.socket, method, **fields)
    response = protobuf_message("pkg.cnirpc.AddResponse" if method == "Add" else "google.protobuf.Empty")
    response.ParseFromString(data)
    return response


async def refused(daemon: Daemon, method: str, **fields: Any) -> tuple[grpc.StatusCode, int]:
    """The status, and the code of its detail."""
    with pytest.raises(grpc.RpcError) as raised:
        await ask(daemon, method, **fields)
    status, detail = foreign_error(raised.value)
    assert detail.msg
    return status, detail.code


async def test_the_life_of_a_pod(daemon: Daemon) -> None:
    kernel = daemon.kernel()
    response = await ask(daemon, "Add", **arguments(daemon))
    result = json.loads(response.result)
    assert result["cniVersion"] == "1.0.0"
    assert [ip["address"] for ip in result["ips"]] == ["10.64.0.1/32", "fd64::1/128"]
    [pod, host] = result["interfaces"]
    assert (pod["name"], pod["sandbox"]) == ("eth0", str(daemon.pods[0].path))
    link = daemon.host.link(host["name"])
    assert link is not None
    assert link["ifalias"] == "COIL:default:c0:eth0"
    assert (await ask(daemon, "Add", **arguments(daemon))).result == response.result
    await ask(daemon, "Check", **arguments(daemon))
    await ask(daemon, "Del", **arguments(daemon, netns=""))
    await ask(daemon, "Del", **arguments(daemon))
    assert daemon.kernel() == kernel
    assert daemon.records == []


async def test_a_gc(daemon: Daemon) -> None:
    for pod in (0, 1):
        await ask(daemon, "Add", **arguments(daemon, pod))
    stays = {"name": "k8s", "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]}
    await ask(daemon, "GC", stdin_data=json.dumps(stays).encode())
    assert await refused(daemon, "Check", **arguments(daemon)) == (grpc.StatusCode.NOT_FOUND, 3)
    await ask(daemon, "Check", **arguments(daemon, 1))


@pytest.mark.parametrize(
    ("method", "changes", "status", "code"),
    [
        ("Check", {}, grpc.StatusCode.NOT_FOUND, 3),
        ("Add", {"netns": "/run/netns/absent"}, grpc.StatusCode.NOT_FOUND, 3),
        ("Add", {"netns": "absent"}, grpc.StatusCode.INVALID_ARGUMENT, 4),
        ("Add", {"container_id": ""}, grpc.StatusCode.INVALID_ARGUMENT, 4),
        ("Add", {"ifname": "a/b"}, grpc.StatusCode.INVALID_ARGUMENT, 4),
        ("Add", {"args": {}}, grpc.StatusCode.INVALID_ARGUMENT, 4),
        ("Del", {"ifname": "x" * 16}, grpc.StatusCode.INVALID_ARGUMENT, 4),
        ("GC", {"stdin_data": b"{"}, grpc.StatusCode.INVALID_ARGUMENT, 6),
        ("GC", {"stdin_data": b'{"name":"k8s"}'}, grpc.StatusCode.INVALID_ARGUMENT, 7),
    ],
)
async def test_a_refusal_has_its_reason_and_no_effect(
    daemon: Daemon, method: str, changes: dict[str, Any], status: grpc.StatusCode, code: int
) -> None:
    kernel = daemon.kernel()
    assert await refused(daemon, method, **arguments(daemon, **changes)) == (status, code)
    assert daemon.kernel() == kernel
    assert daemon.records == []


async def test_a_pod_that_another_plugin_has_wired(daemon: Daemon) -> None:
    chained = arguments(daemon)["args"] | {"IS_CHAINED": "true"}
    conf = {"name": "k8s", "prevResult": RESULT}
    changes = {"args": chained, "ips": ["10.0.0.9"], "stdin_data": json.dumps(conf).encode()}
    assert await refused(daemon, "Add", **arguments(daemon, **changes)) == (grpc.StatusCode.INVALID_ARGUMENT, 7)


async def test_an_add_without_an_address_left(daemon: Daemon) -> None:
    for number in range(ADDRESSES):
        await ask(daemon, "Add", **arguments(daemon, container_id=f"full-{number}", netns=str(daemon.pods[0].path)))
        # The kernel forgets what the ledger keeps, so that one namespace is enough.
        daemon.pods[0].ip("link", "delete", "eth0")
    assert await refused(daemon, "Add", **arguments(daemon, 1)) == (grpc.StatusCode.UNAVAILABLE, 11)


async def test_a_caller_that_has_gone_leaves_a_whole_pod_or_none(daemon: Daemon) -> None:
    kernel = daemon.kernel()
    request = protobuf_message("pkg.cnirpc.CNIArgs", **arguments(daemon)).SerializeToString()
    with foreign_channel(daemon.socket) as channel:
        method = channel.unary_unary("/pkg.cnirpc.CNI/Add")
        for seconds in (0.001, 0.002, 0.004, 0.008, 0.016):
            call = method.future(request, timeout=seconds)
            await asyncio.to_thread(call.code)
            # What the connection has carried before this question has been read when it is answered.
            await asyncio.to_thread(channel.unary_unary("/grpc.health.v1.Health/Check"), b"", timeout=60)
            async with asyncio.timeout(60):
                await daemon.executor.wait_idle()
            if daemon.records:
                await ask(daemon, "Check", **arguments(daemon))
            await ask(daemon, "Del", **arguments(daemon))
            assert daemon.kernel() == kernel
            assert daemon.records == []


async def test_many_calls_at_once_on_one_connection(daemon: Daemon) -> None:
    requests = [
        protobuf_message("pkg.cnirpc.CNIArgs", **arguments(daemon, number % 2)).SerializeToString()
        for number in range(32)
    ]
    with foreign_channel(daemon.socket) as channel:
        method = channel.unary_unary("/pkg.cnirpc.CNI/Add")
        under_way = [method.future(request, timeout=60) for request in requests]
        answers = await asyncio.gather(*(asyncio.to_thread(call.result) for call in under_way))
    # Sixteen ADDs of each of two pods: each pod is attached once.
    assert len(set(answers)) == 2
    assert len({answers[number] for number in range(0, 32, 2)}) == 1
    assert len(daemon.source.held()) == 2
    assert len(daemon.host.link_names()) == 2


def connect_as_nobody(socket: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/usr/bin/python3", "-IS", "-c", CONNECT, socket],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_only_root_may_connect(daemon: Daemon) -> None:
    stranger = await asyncio.to_thread(connect_as_nobody, daemon.socket)
    assert stranger.returncode == 1
    assert "PermissionError" in stranger.stderr
    # Nothing but the socket's mode has refused it.
    daemon.socket.chmod(0o666)
    assert (await asyncio.to_thread(connect_as_nobody, daemon.socket)).returncode == 0
