"""The plugin's sources in a bare interpreter of their own: what they import, and the edges of a process.

In the tests' own process everything is imported already. The executable that nodes get has tests of its own, see
integration/plugin.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import coil_cni
from coil_cni.invocation import NEWEST
from tests.coil_cni.edges import ENVIRON, NETCONF

SOURCES = str(Path(coil_cni.__file__).parent.parent)
INTERPRETER = str(Path(sys.executable).resolve())


def bare(code: str, *, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run `code` with -I -S and the plugin's sources on the path, after `import sys`."""
    program = f"import sys; sys.dont_write_bytecode = True; sys.path.insert(0, {SOURCES!r})\n{code}"
    return subprocess.run(
        [INTERPRETER, "-IS", "-c", program], env=environ, input=stdin, capture_output=True, timeout=60, check=False
    )


MAIN = "from coil_cni.plugin import main; main()"


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("coil_cni.plugin", {"select"}),
        ("coil_cni.service", {"_socket", "select"}),
        ("coil_cni.recorded_delete", set()),
    ],
)
def test_no_module_is_imported_that_the_start_cannot_afford(module: str, expected: set[str]) -> None:
    answer = bare(f"before = set(sys.modules); import {module}; print(*sorted(set(sys.modules) - before))")
    imported = {name for name in answer.stdout.decode().split() if not name.startswith("coil_cni")}
    assert imported == expected, answer.stderr


def test_what_needs_no_network_imports_none_of_it() -> None:
    answer = bare("import coil_cni.plugin; print(*sys.modules)")
    assert not {"coil_cni.grpc", "coil_cni.http2", "coil_cni.message"} & set(answer.stdout.decode().split())


def test_only_a_del_that_is_to_be_recorded_imports_what_records() -> None:
    answer = bare("import coil_cni.plugin, coil_cni.service; print(*sys.modules)")
    assert "coil_cni.service" in answer.stdout.decode().split()
    assert "coil_cni.recorded_delete" not in answer.stdout.decode().split()


@pytest.mark.parametrize(
    "stdin",
    [
        b"{",
        b"[1,",
        b'{"a" 1}',
        b'{"a":tru}',
        b'"\\x"',
        b'"\t"',
        b"-",
        b"1e999",
        b"NaN",
        b"[" * 100_000,
        b"\xff",
        b"{}{}",
    ],
)
def test_malformed_json_where_the_json_package_is_not_loaded(stdin: bytes) -> None:
    answer = bare(MAIN, stdin=stdin, **ENVIRON)
    assert (answer.returncode, json.loads(answer.stdout)["code"], answer.stderr) == (1, 6, b"")


def test_malformed_escapes_and_errors_of_coild_where_nothing_is_loaded() -> None:
    code = """
from coil_cni.grpc import _failure
for headers in ({b"grpc-message": b"%e2%9c%93 %zz"}, {b"grpc-status-details-bin": b"CA4"}, {}):
    print(ascii(_failure(b"14", headers).document("1.0.0")["msg"]))
"""
    answer = bare(code)
    assert answer.stdout.decode().split("\n")[:3] == [r"'\u2713 %zz'", "'coild failed'", "'coild failed'"], (
        answer.stderr
    )


def test_environment_that_is_not_text() -> None:
    program = f"import sys; sys.path.insert(0, {SOURCES!r}); {MAIN}"
    environ = {name.encode(): value.encode() for name, value in ENVIRON.items()} | {b"CNI_IFNAME": b"\xff"}
    answer = subprocess.run(
        [INTERPRETER, "-ISB", "-c", program], env=environ, input=b"{}", capture_output=True, timeout=60, check=False
    )
    assert (answer.returncode, json.loads(answer.stdout)["code"], answer.stderr) == (1, 4, b"")


def test_standard_input_that_cannot_be_read() -> None:
    program = f"import sys; sys.path.insert(0, {SOURCES!r}); {MAIN}"
    with Path("/dev/null").open("wb") as write_only:
        answer = subprocess.run(
            [INTERPRETER, "-ISB", "-c", program],
            env=ENVIRON,
            stdin=write_only,
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert (answer.returncode, json.loads(answer.stdout)["code"], answer.stderr) == (1, 5, b"")


def test_standard_input_in_pieces_and_an_interruption_between_them() -> None:
    program = f"import sys; sys.path.insert(0, {SOURCES!r}); {MAIN}"
    stdin = json.dumps(NETCONF | {"cniVersion": "0.5.0"}).encode()
    with subprocess.Popen(
        [INTERPRETER, "-ISB", "-c", program], env=ENVIRON, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        for octet in stdin:
            process.stdin.write(bytes((octet,)))
            process.stdin.flush()
            process.send_signal(signal.SIGWINCH)
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, json.loads(output)["code"]) == (1, 1)


def test_standard_output_that_nobody_reads() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = f"import sys; sys.path.insert(0, {SOURCES!r}); {MAIN}"
    try:
        answer = subprocess.run(
            [INTERPRETER, "-ISB", "-c", program],
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


def test_as_a_module() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "coil_cni"],
        env={"CNI_COMMAND": "VERSION"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert json.loads(answer.stdout)["cniVersion"] == NEWEST
