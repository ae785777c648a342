"""The executable as a process: the same answers as the sources give, and the edges that only a process has."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import coil_cni
from integration.plugin.executable import plugin_executable
from tests.coil_cni.edges import ENVIRON, NETCONF, run_plugin

INPUTS = [
    *(b"", b" ", b"{", b"[1,", b'{"a" 1}', b'{"a":tru}', b'"\\x"', b'"\t"', b"-", b"1e999", b"NaN", b"{}{}"),
    *(b"[" * 100_000, b"\xff", b"9" * 5000, b'{"cniVersion":"\\ud800"}', b'{"cniVersion":"9.9"}'),
    *(b'{"cniVersion":"1.0.0","name":"a","socket":"a"}', b'{"cniVersion":"1.0.0","name":"\xc3\xa0"}'),
    b'{"cniVersion":"1.0.0","name":"a","prevResult":{"ips":[{"address":"\\udc00"}]}}',
]


def execute(environ: dict[bytes, bytes], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([plugin_executable()], env=environ, input=stdin, capture_output=True, timeout=60, check=False)


def octets(environ: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in environ.items()}


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"])
def test_bad_input_is_answered_as_the_sources_answer_it(command: str) -> None:
    environ = octets(ENVIRON | {"CNI_COMMAND": command})
    for stdin in INPUTS:
        answer, expected = execute(environ, stdin), run_plugin(environ, stdin)
        assert (answer.returncode, answer.stdout, answer.stderr) == (expected.status, expected.output, b""), stdin


@pytest.mark.parametrize(
    "changes",
    [
        {b"CNI_IFNAME": b"\xff"},
        {b"CNI_IFNAME": "ünter".encode()},
        {b"CNI_ARGS": b"a=b=c"},
        {b"CNI_CONTAINERID": b""},
        {b"CNI_COMMAND": b"GONE"},
    ],
)
def test_a_bad_environment_is_answered_as_the_sources_answer_it(changes: dict[bytes, bytes]) -> None:
    environ = octets(ENVIRON) | changes
    stdin = json.dumps(NETCONF | {"socket": "/nowhere/coild.sock"}).encode()
    answer, expected = execute(environ, stdin), run_plugin(environ, stdin)
    assert (answer.returncode, answer.stdout, answer.stderr) == (expected.status, expected.output, b"")


def test_too_much_input() -> None:
    answer = execute(octets(ENVIRON), b" " * (2 << 20))
    assert (answer.returncode, json.loads(answer.stdout)["code"], answer.stderr) == (1, 5, b"")


def test_standard_input_that_cannot_be_read() -> None:
    with Path("/dev/null").open("wb") as write_only:
        answer = subprocess.run(
            [plugin_executable()], env=ENVIRON, stdin=write_only, capture_output=True, timeout=60, check=False
        )
    assert (answer.returncode, json.loads(answer.stdout)["code"], answer.stderr) == (1, 5, b"")


def test_standard_input_in_pieces_and_signals_between_them() -> None:
    stdin = json.dumps(NETCONF | {"cniVersion": "0.5.0"}).encode()
    with subprocess.Popen([plugin_executable()], env=ENVIRON, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        for octet in stdin:
            process.stdin.write(bytes((octet,)))
            process.stdin.flush()
            process.send_signal(signal.SIGWINCH)
        output, _ = process.communicate(timeout=60)
    expected = run_plugin(ENVIRON, stdin)
    assert (process.returncode, output) == (expected.status, expected.output)


def test_standard_output_that_nobody_reads() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        answer = subprocess.run(
            [plugin_executable()],
            env={"CNI_COMMAND": "VERSION"},
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (answer.returncode, answer.stderr) == (1, b"")


def test_a_program_that_cannot_start_says_so_as_a_plugin(tmp_path: Path) -> None:
    source = shutil.copytree(
        Path(coil_cni.__file__).parent, tmp_path / "coil_cni", ignore=shutil.ignore_patterns("__pycache__")
    )
    (source / "error.py").write_text("raise ValueError('a defect')\n")
    broken = plugin_executable(source)
    answer = subprocess.run([broken], env=ENVIRON, input=b"{}", capture_output=True, timeout=60, check=False)
    assert (answer.returncode, json.loads(answer.stdout)["code"]) == (1, 999)
    assert b"a defect" in answer.stderr
