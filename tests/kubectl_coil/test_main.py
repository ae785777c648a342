"""The command line: what is imported for it, where it looks for a cluster, and how errors are told."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from kubectl_coil.options import find_kubeconfigs
from tests.coil.kube.faulty_server import FaultyServer, fail

LIGHT = {"click", "kubectl_coil"}
"""What `--help` may load beyond Python itself."""


def run(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kubectl_coil", *arguments],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_loads_nothing_that_takes_time(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "from kubectl_coil.main import main\n"
        "sys.argv = ['kubectl-coil', 'status', '--help']\n"
        "code = main()\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print('LOADED', code, *sorted(new - set(sys.stdlib_module_names)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    _, code, *loaded = done.stdout.splitlines()[-1].split()
    assert code == "0"
    assert set(loaded) <= LIGHT
    assert "--wait" in done.stdout


def test_where_the_kubeconfig_is(tmp_path: Path) -> None:
    usual = tmp_path / ".kube" / "config"
    chosen, named = tmp_path / "chosen", tmp_path / "named"
    pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    assert find_kubeconfigs(chosen, {"KUBECONFIG": str(named)}, home=tmp_path) == [chosen]
    assert find_kubeconfigs(None, {"KUBECONFIG": f"{named}:"}, home=tmp_path) == [named], "so that the error names it"
    assert find_kubeconfigs(None, {}, home=tmp_path) == [usual], "so that the error names it"
    assert find_kubeconfigs(None, pod, home=tmp_path) == []
    usual.parent.mkdir()
    usual.touch()
    assert find_kubeconfigs(None, pod, home=tmp_path) == [usual]
    chosen.touch()
    assert find_kubeconfigs(None, {"KUBECONFIG": f"{named}:{chosen}"}, home=tmp_path) == [chosen]
    named.touch()
    assert find_kubeconfigs(None, {"KUBECONFIG": f"{named}:{chosen}"}, home=tmp_path) == [named, chosen]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["status", "--kubeconfig=/nonexistent"], "the kubeconfig /nonexistent cannot be read"),
        (["status", "--output=xml"], "'xml' is not one of 'table', 'json', 'yaml'"),
        (["status", "--request-timeout=soon"], "is not a length of time"),
        (["stratus"], "No such command 'stratus'"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(tmp_path: Path, arguments: list[str], told: str) -> None:
    done = run(*arguments, home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_server_that_refuses_everything_is_unreachable(tmp_path: Path) -> None:
    async with FaultyServer() as server:
        server.otherwise = fail(401, message="Unauthorized")
        kubeconfig = server.write_kubeconfig(tmp_path)
        done = await asyncio.to_thread(run, "status", f"--kubeconfig={kubeconfig}", home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kubectl coil: GET ")
    assert "Unauthorized" in done.stderr
    assert len(done.stderr.splitlines()) == 1


COMMANDS = (
    *(["status"], ["ipam", "show"], ["ipam", "check"], ["trace", "pod", "192.0.2.1"]),
    *(["connectivity"], ["sysdump"]),
)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (403, "no such luck (HTTP 403); bind a ClusterRole to the user of this kubeconfig: coil-viewer to read"),
        (429, "no such luck (HTTP 429)"),
        (503, "no such luck (HTTP 503)"),
    ],
)
async def test_no_command_can_be_carried_out_without_an_answer(tmp_path: Path, code: int, told: str) -> None:
    """The sentence has what the server says. Of one that refuses, `status` tells what it may not see, part by part."""
    async with FaultyServer() as server:
        server.otherwise = fail(code, message="no such luck", Retry_After="1")
        where = f"--kubeconfig={server.write_kubeconfig(tmp_path)}"
        runs = (asyncio.to_thread(run, *command, where, home=tmp_path) for command in COMMANDS)
        done = dict(zip(map(" ".join, COMMANDS), await asyncio.gather(*runs), strict=True))
    if code == 403:
        seen = done.pop("status")
        assert seen.returncode == 1
        assert "bind the ClusterRole coil-viewer to the user of this kubeconfig" in seen.stdout
    for command, each in done.items():
        assert (each.returncode, each.stdout) == (2, ""), command
        [sentence] = each.stderr.splitlines()
        assert sentence.startswith("kubectl coil: GET /"), command
        assert told in sentence, command


def test_the_name_of_another_context(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("{current-context: x, contexts: []}")
    done = run("status", f"--kubeconfig={config}", "--context=other", home=tmp_path)
    assert "there is no context 'other'" in done.stderr
