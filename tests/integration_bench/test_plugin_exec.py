"""The driver against small real programs: what a plugin sees, and what becomes of one that misbehaves."""

import json
import os
import sys
from pathlib import Path

import pytest

from integration.bench.plugin_exec import Operation, PluginError, execute_plugins


def script(folder: Path, body: str) -> Path:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def operation(plugin: Path, **changes: str) -> Operation:
    return Operation(plugin=plugin, command="ADD", netconf=b'{"name":"test"}', **changes)


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")


def test_a_plugin_gets_what_a_runtime_gives(tmp_path: Path) -> None:
    variables = "$CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS $CNI_PATH"
    plugin = script(tmp_path, f'cat; echo; echo "{variables}"')
    (done,) = execute_plugins(
        [operation(plugin, container_id="c1", netns="/run/netns/x", arguments="A=1;B=2")], width=1
    )
    assert done.output.decode().split("\n") == ['{"name":"test"}', f"ADD c1 /run/netns/x eth0 A=1;B=2 {tmp_path}", ""]
    assert done.seconds > 0


def test_nothing_else_of_our_environment_gets_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    (done,) = execute_plugins([operation(script(tmp_path, "env"))], width=1)
    assert "PYTHONPATH" not in done.output.decode()


def test_cpu_of_waited_for_children_counts(tmp_path: Path) -> None:
    # The shell's child does the work; the shell only waits.
    work = f"{sys.executable} -c 'sum(range(3000000))'; true"
    busy, idle = (execute_plugins([operation(script(tmp_path, body))], width=1)[0].cpu.total for body in (work, "true"))
    assert busy > 3 * idle


@pytest.mark.parametrize("width", [1, 4, 50])
def test_no_more_than_width_at_once(tmp_path: Path, width: int) -> None:
    """Each plugin counts the marks of those that run with it."""
    body = f"touch {tmp_path}/run.$$; ls {tmp_path} | grep -c ^run; sleep 0.02; rm {tmp_path}/run.$$"
    done = execute_plugins([operation(script(tmp_path, body)) for _ in range(20)], width=width)
    assert len(done) == 20
    assert max(int(execution.output) for execution in done) <= width


def test_a_failure_carries_what_the_plugin_said_and_ends_the_others(tmp_path: Path) -> None:
    error = json.dumps({"code": 11, "msg": "pool dry"})
    failing = script(tmp_path, f"echo '{error}'; exit 3")
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    with pytest.raises(PluginError, match=r"plugin ADD ended with code 3: .*pool dry"):
        execute_plugins([operation(sleeper), operation(failing), operation(sleeper)], width=3)
    assert children() == ""


def test_a_plugin_that_hangs_is_given_up_and_killed(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="none of 2 plugins"):
        execute_plugins([operation(script(tmp_path, "exec sleep 60"))] * 2, width=2, patience=0.05)
    assert children() == ""


def test_a_plugin_that_is_not_there(tmp_path: Path) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(FileNotFoundError):
        execute_plugins([operation(tmp_path / "absent")], width=1)
    assert sorted(Path("/proc/self/fd").iterdir()) == before
