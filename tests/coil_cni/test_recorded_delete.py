"""A DEL for which coild cannot be reached: what is left of it on disk, and when it fails as any other command."""

import json
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from coil_cni.recorded_delete import MOST_RECORDS, record_delete
from tests.coil_cni.edges import ENVIRON, NETCONF, Outcome, run_plugin
from tests.coil_cni.foreign_server import abort, foreign_server
from tests.coil_cni.protobuf import protobuf_message

COILD = "coild.sock"


def run(folder: Path, command: str = "DEL", **environ: str) -> Outcome:
    """The command, for a coild whose socket is in that folder."""
    stdin = json.dumps(NETCONF | {"cniVersion": "1.1.0", "socket": str(folder / COILD)}).encode()
    return run_plugin(ENVIRON | {"CNI_COMMAND": command} | environ, stdin, record_delete=record_delete)


def records(folder: Path) -> list[Path]:
    place = folder / f"{COILD}.deletes"
    return sorted(place.iterdir()) if place.is_dir() else []


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Path]:
    """The folder of a socket that takes connections and answers none."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / COILD))
        listener.listen()
        yield tmp_path


def test_a_del_without_coild_succeeds_and_is_on_disk_for_root_alone(tmp_path: Path) -> None:
    before = time.monotonic()
    outcome = run(tmp_path)
    assert (outcome.status, outcome.output) == (0, b"")
    [record] = records(tmp_path)
    container, ifname, at = record.name.split(":")
    assert (container, ifname) == ("c0ffee", "eth0")
    assert before - 0.001 <= int(at) / 1000 <= time.monotonic()
    assert (stat.S_IMODE(record.stat().st_mode), record.stat().st_size) == (0o600, 0)
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700


def test_a_socket_that_a_coild_has_left_is_like_none(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / COILD))
    assert run(tmp_path).status == 0
    assert len(records(tmp_path)) == 1


def test_a_coild_that_does_not_answer_in_time_is_like_none(silent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coil_cni.plugin.TIMEOUT", 0.05)
    assert run(silent).status == 0
    assert len(records(silent)) == 1


def test_a_del_that_is_repeated_is_recorded_once_and_others_beside_it(tmp_path: Path) -> None:
    for changes in ({}, {}, {"CNI_IFNAME": "eth1"}, {"CNI_CONTAINERID": "c0ffe"}, {"CNI_IFNAME": "ünter"}):
        assert run(tmp_path, **changes).status == 0
    keys = {record.name.rpartition(":")[0] for record in records(tmp_path)}
    assert keys == {"c0ffee:eth0", "c0ffee:eth1", "c0ffe:eth0", "c0ffee:ünter"}
    assert len(records(tmp_path)) == len(keys)


@pytest.mark.parametrize("command", ["ADD", "CHECK", "STATUS"])
def test_no_other_command_is_recorded(tmp_path: Path, command: str) -> None:
    assert run(tmp_path, command).status == 1
    assert records(tmp_path) == []


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN])
def test_what_coild_has_refused_is_its_answer(tmp_path: Path, code: grpc.StatusCode) -> None:
    detail = protobuf_message("pkg.cnirpc.CNIError", code=11, msg="the kernel is busy")

    def refuse(_: Any, context: grpc.ServicerContext) -> None:
        abort(context, code, "busy", detail)

    with foreign_server(tmp_path / COILD, {"Del": refuse}):
        outcome = run(tmp_path)
    assert outcome.code == 11
    assert outcome.document["msg"] == "the kernel is busy"
    assert records(tmp_path) == []


def test_a_socket_that_may_not_be_used_is_an_error(tmp_path: Path) -> None:
    """What is wrong is not that coild is away."""
    (tmp_path / "file").touch()
    outcome = run(tmp_path / "file")
    assert outcome.code == 5


def test_beyond_the_limit_a_del_fails_and_says_how_many_there_are(tmp_path: Path) -> None:
    place = tmp_path / f"{COILD}.deletes"
    place.mkdir(mode=0o700)
    for number in range(MOST_RECORDS - 1):
        (place / f"c{number}:eth0:1").touch()
    assert run(tmp_path).status == 0
    outcome = run(tmp_path, CNI_CONTAINERID="another")
    assert outcome.code == 11
    assert "coild is not there" in outcome.document["msg"]
    assert f"{MOST_RECORDS} records, of at most {MOST_RECORDS}" in outcome.document["details"]
    assert run(tmp_path).status == 0, "what is recorded already is so"
    assert len(records(tmp_path)) == MOST_RECORDS


def test_where_nothing_can_be_written_a_del_fails_and_says_why(tmp_path: Path) -> None:
    outcome = run(tmp_path / "nowhere")
    assert outcome.code == 11
    assert "coild is not there" in outcome.document["msg"]
    assert "could not be recorded" in outcome.document["details"]
    (tmp_path / f"{COILD}.deletes").touch()
    assert run(tmp_path).code == 11


def test_a_container_whose_name_is_too_long_for_a_file_is_not_recorded(tmp_path: Path) -> None:
    outcome = run(tmp_path, CNI_CONTAINERID="c" * 250)
    assert outcome.code == 11
    assert "255 octets" in outcome.document["details"]
    assert records(tmp_path) == []
