"""Commands in pods by the API server's WebSocket protocol: what comes out of them, and how they fail."""

from urllib.parse import parse_qsl, urlsplit

import pytest

from coil.crd.resource import NamespacedName
from coil.kube.errors import ForbiddenError, NotFoundError, UnavailableError
from kubectl_coil.cluster import Cluster, ExecError
from tests.kubectl_coil.exec_server import DONE, STATUS, STDERR, STDOUT, ExecServer

POD = NamespacedName("kube-system", "coild-x")


async def execute(
    server: ExecServer, *command: str, seconds: float = 60.0, timeout: float = 0.1, limit: int = 1000
) -> bytes:
    async with server.running(), Cluster.connect(server.config, timeout=timeout) as cluster:
        return await cluster.execute(POD, command, container="coild", seconds=seconds, limit=limit)


async def test_the_output_is_put_together() -> None:
    server = ExecServer([STDOUT, STDOUT + b"\xc3", STDERR + b"a warning", STDOUT + b"\xbc\n", DONE, STDOUT + b"late"])
    assert await execute(server, "coil-node-dump", "--parts=node", "a b&c") == "ü\n".encode()
    [asked] = server.asked
    assert urlsplit(asked).path == "/api/v1/namespaces/kube-system/pods/coild-x/exec"
    assert parse_qsl(urlsplit(asked).query) == [
        ("container", "coild"),
        ("stdout", "true"),
        ("stderr", "true"),
        ("command", "coil-node-dump"),
        ("command", "--parts=node"),
        ("command", "a b&c"),
    ]
    assert server.authorization == "Bearer secret"


async def test_a_command_that_fails_says_why() -> None:
    failure = b'{"kind":"Status","status":"Failure","reason":"NonZeroExitCode","message":"exit code 2"}'
    with pytest.raises(ExecError, match="exit code 2: no such flag"):
        await execute(ExecServer([STDERR + b"no such\nflag\n", STATUS + failure]))


async def test_a_connection_that_ends_early_is_no_answer() -> None:
    with pytest.raises(ExecError, match="before the command had ended"):
        await execute(ExecServer([STDOUT + b"{"]))


async def test_too_much_is_refused() -> None:
    with pytest.raises(ExecError, match="more than 10 bytes"):
        await execute(ExecServer([STDOUT + b"12345", STDOUT + b"678901", DONE]), limit=10)


@pytest.mark.parametrize(("code", "error"), [(403, ForbiddenError), (404, NotFoundError), (503, UnavailableError)])
async def test_a_refusal_has_its_reason(code: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="exec in the pod kube-system/coild-x"):
        await execute(ExecServer(refusal=code))


async def test_it_ends_when_its_time_is_over() -> None:
    with pytest.raises(UnavailableError, match="no answer in time"):
        await execute(ExecServer([STDOUT + b"{"], stays=True), seconds=0.2)


async def test_it_has_the_time_of_any_call() -> None:
    assert await execute(ExecServer([STDOUT + b"{}", DONE]), seconds=0.0, timeout=60.0) == b"{}"
