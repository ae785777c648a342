"""Both ends of a connectivity test, as programs on loopback."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

PROGRAM = [sys.executable, "-m", "coil_connectivity_probe"]


def free_port() -> int:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as listening:
        listening.bind(("", 0))
        return int(listening.getsockname()[1])


def ask(*targets: str, seconds: float = 20.0) -> list[dict[str, Any]]:
    command = [*PROGRAM, "ask", f"--timeout={seconds}", *targets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    port = free_port()
    serving = subprocess.Popen([*PROGRAM, "serve", f"--port={port}"])
    try:
        while ask(f"connect://127.0.0.1:{port}")[0]["error"]:
            assert serving.poll() is None
        yield port
    finally:
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0


def test_each_family_and_protocol(port: int) -> None:
    targets = [f"{scheme}://{host}:{port}" for scheme in ("tcp", "udp") for host in ("127.0.0.1", "[::1]")]
    found = ask(*targets)
    assert [(each["target"], each["answer"], each["error"]) for each in found] == [
        (target, "::1" if "::1" in target else "127.0.0.1", "") for target in targets
    ]


def test_where_nobody_listens() -> None:
    port = free_port()
    refused, unanswered = ask(f"tcp://127.0.0.1:{port}", f"udp://127.0.0.1:{port}")
    assert refused["error"] == unanswered["error"] == "ECONNREFUSED"


def test_who_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket(type=socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        targets = [f"tcp://127.0.0.1:{silent.getsockname()[1]}", f"udp://127.0.0.1:{deaf.getsockname()[1]}"]
        found = ask(*targets, f"connect://127.0.0.1:{silent.getsockname()[1]}", seconds=0.5)
    assert [each["error"] for each in found] == ["ETIMEDOUT", "ETIMEDOUT", ""]


def test_names() -> None:
    found, missing = ask("name://localhost", "name://nobody.invalid")
    assert "127.0.0.1" in found["answer"].split(",")
    assert missing["error"]


@pytest.mark.parametrize("target", ["http://x", "tcp://x", "tcp://:80", "name://x:80", "nonsense"])
def test_targets_that_cannot_be_read(target: str) -> None:
    done = subprocess.run([*PROGRAM, "ask", target], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert target in done.stderr
