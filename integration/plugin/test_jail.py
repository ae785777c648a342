"""The installed plugin where there is nothing else: it works, and it leaves nothing behind, also when it is killed."""

import json
import stat
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from coil_cni.invocation import NEWEST
from coil_cni.netconf import CHART_FOLDER
from integration.plugin.jail import CONFLIST, SOCKET, Jail
from tests.coil_cni.edges import ENVIRON, NETCONF
from tests.coil_cni.foreign_server import Handler, abort, foreign_server
from tests.coil_cni.protobuf import protobuf_message
from tests.coil_cni.test_foreign_server import empty
from tests.coil_cni.test_service import OLD, RESULT

CONF = NETCONF | {"socket": str(SOCKET)}


def answer(_: Any, __: grpc.ServicerContext) -> Any:
    return protobuf_message("pkg.cnirpc.AddResponse", result=json.dumps(RESULT).encode())


def call(jail: Jail, command: str, handler: Handler, **conf: Any) -> tuple[int, Any]:
    """Exit status and document of one call, against a server outside."""
    with foreign_server(jail.socket, {command.capitalize(): handler}):
        done = jail.run(ENVIRON | {"CNI_COMMAND": command}, json.dumps(CONF | conf).encode())
    return done.returncode, json.loads(done.stdout) if done.stdout else None


def test_nothing_else_is_there(jail: Jail) -> None:
    files = {path.rpartition("/")[2] for path, (_, mode, _, _) in jail.listing().items() if stat.S_ISREG(mode)}
    assert files == {"coil", "10-coil.conflist"}
    assert json.loads((jail.folders().conf_dir / "10-coil.conflist").read_text())["plugins"] == CONFLIST["plugins"]


def test_version_with_no_environment_but_the_command(jail: Jail) -> None:
    done = jail.run({"CNI_COMMAND": "VERSION"}, b"")
    assert (done.returncode, json.loads(done.stdout)["cniVersion"]) == (0, NEWEST)


def test_no_environment_at_all(jail: Jail) -> None:
    done = jail.run({}, b"")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (1, 4)


@pytest.mark.parametrize(("version", "expected"), [("1.0.0", RESULT), ("0.4.0", OLD)])
def test_add(jail: Jail, version: str, expected: dict[str, Any]) -> None:
    assert call(jail, "ADD", answer, cniVersion=version) == (0, expected)


def test_add_with_a_result_of_megabytes(jail: Jail) -> None:
    result = RESULT | {"padding": ["x" * 1000] * 3000}
    response = protobuf_message("pkg.cnirpc.AddResponse", result=json.dumps(result).encode())
    assert call(jail, "ADD", lambda _, __: response, cniVersion="0.4.0") == (0, OLD | {"padding": result["padding"]})


def test_add_in_a_chain(jail: Jail) -> None:
    assert call(jail, "ADD", answer, cniVersion="0.4.0", prevResult=OLD) == (0, OLD)


@pytest.mark.parametrize("command", ["DEL", "CHECK"])
def test_del_and_check(jail: Jail, command: str) -> None:
    assert call(jail, command, empty) == (0, None)


def test_gc_and_status(jail: Jail) -> None:
    stdin = json.dumps(CONF | {"cniVersion": "1.1.0", "cni.dev/valid-attachments": []}).encode()
    away = jail.run({"CNI_COMMAND": "STATUS"}, stdin)
    assert (away.returncode, json.loads(away.stdout)["code"]) == (1, 50)
    with foreign_server(jail.socket, {"GC": empty}):
        for command in ("GC", "STATUS"):
            done = jail.run({"CNI_COMMAND": command}, stdin)
            assert (done.returncode, done.stdout) == (0, b"")


def test_an_error_of_the_server_with_its_details(jail: Jail) -> None:
    detail = protobuf_message("pkg.cnirpc.CNIError", code=11, msg="pool “déjà” is dry", details="100 %\nof it")

    def refuse(_: Any, context: grpc.ServicerContext) -> None:
        abort(context, grpc.StatusCode.INTERNAL, "pool", detail)

    status, document = call(jail, "ADD", refuse)
    assert (status, document["code"], document["msg"], document["details"]) == (
        1,
        11,
        "pool “déjà” is dry",
        "100 %\nof it",
    )


def test_a_server_that_is_away_and_a_socket_whose_name_is_not_ascii(jail: Jail) -> None:
    done = jail.run(ENVIRON, json.dumps(CONF).encode())
    assert (done.returncode, json.loads(done.stdout)["code"]) == (1, 11)
    done = jail.run(ENVIRON, json.dumps(CONF | {"socket": "/run/à.sock"}).encode())
    document = json.loads(done.stdout)
    assert (done.returncode, document["code"]) == (1, 11)
    assert "/run/à.sock" in document["msg"]
    with foreign_server(jail.socket.with_name("à.sock"), {"Add": answer}):
        done = jail.run(ENVIRON, json.dumps(CONF | {"socket": "/run/à.sock"}).encode())
    assert (done.returncode, json.loads(done.stdout)) == (0, RESULT)


def test_a_del_without_a_server_is_recorded_once_beside_the_socket(jail: Jail) -> None:
    before = jail.listing()
    for _ in range(2):
        done = jail.run(ENVIRON | {"CNI_COMMAND": "DEL"}, json.dumps(CONF).encode())
        assert (done.returncode, done.stdout) == (0, b"")
    folder, record = sorted(jail.listing().keys() - before.keys())
    assert folder == str(jail.outside(SOCKET)) + ".deletes"
    assert Path(record).name.startswith("c0ffee:eth0:")
    modes = [jail.listing()[path][1] for path in (folder, record)]
    assert [stat.S_IMODE(mode) for mode in modes] == [0o700, 0o600]
    conf = CONF | {"socket": "/run/nowhere/coild.sock"}
    done = jail.run(ENVIRON | {"CNI_COMMAND": "DEL"}, json.dumps(conf).encode())
    document = json.loads(done.stdout)
    assert (done.returncode, document["code"]) == (1, 11)
    assert "could not be recorded" in document["details"]


@pytest.mark.parametrize("named", [{}, {"socket": str(SOCKET)}], ids=["unnamed", "named"])
def test_a_configuration_that_the_runtime_has_kept_of_coil_v2_finds_the_charts_socket(
    jail: Jail, named: dict[str, str]
) -> None:
    stdin = json.dumps(NETCONF | named).encode()
    chart = jail.outside(Path(CHART_FOLDER, "coild.sock"))
    chart.parent.mkdir()
    elsewhere = json.dumps(NETCONF | {"socket": "/run/nowhere/coild.sock"}).encode()
    with foreign_server(chart, {"Add": answer}):
        assert jail.run(ENVIRON, stdin).returncode == 0
        assert jail.run(ENVIRON, elsewhere).returncode == 1
        with foreign_server(
            jail.socket, {"Add": lambda _, context: abort(context, grpc.StatusCode.INTERNAL, "another one")}
        ):
            assert jail.run(ENVIRON, stdin).returncode == 1  # the one that it names counts where it is there


def test_nothing_is_left_behind(jail: Jail) -> None:
    with foreign_server(jail.socket, {"Add": answer, "Del": empty}):
        before = jail.listing()
        for command in ("VERSION", "ADD", "DEL"):
            assert jail.run(ENVIRON | {"CNI_COMMAND": command}, json.dumps(CONF).encode()).returncode == 0
        assert jail.run(ENVIRON, b"{").returncode == 1
        assert jail.listing() == before


def test_nothing_is_left_behind_by_one_that_is_killed(jail: Jail) -> None:
    called, release = threading.Event(), threading.Event()

    def wait(request: Any, context: grpc.ServicerContext) -> Any:
        called.set()
        assert release.wait(60)
        return answer(request, context)

    with foreign_server(jail.socket, {"Add": wait}):
        before = jail.listing()
        with jail.start(ENVIRON) as process:
            assert process.stdin is not None
            process.stdin.write(json.dumps(CONF).encode())
            process.stdin.close()
            assert called.wait(60)
            process.kill()
            assert process.wait(60) == -9
        with jail.start(ENVIRON) as process:  # and one that still waits for its configuration
            process.kill()
            assert process.wait(60) == -9
        assert jail.listing() == before
        release.set()
