import asyncio
import signal
from pathlib import Path

import pytest

from coil_migrator import main as program
from coil_migrator.dump import DumpError
from coil_migrator.main import INTERRUPTED, main, write_whole
from coil_migrator.progress import Progress


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["coil-migrator", *arguments])
    return main()


def test_help_and_what_is_no_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == 0
    assert "check|convert|dump|replace" in capsys.readouterr().out
    for arguments in ((), ("undo",)):
        assert run(monkeypatch, *arguments) == 2
        assert "check|convert|dump|replace" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["dump", "replace"])
def test_the_help_of_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, command, "--help")
    assert end.value.code == 0
    assert "--dry-run" in capsys.readouterr().out


def test_an_etcd_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],"
        " users: [{name: u, user: {}}], contexts: [{name: c, context: {cluster: c, user: u}}]}"
    )
    arguments = ("dump", f"--kubeconfig={kubeconfig}", "--etcd-endpoints=http://127.0.0.1:1")
    assert run(monkeypatch, *arguments) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("coil-migrator: etcd does not answer: http://127.0.0.1:1: ")
    assert said.err.endswith("nothing was changed\n")


def test_a_folder_that_is_not_there_is_told_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "dump", f"--output={tmp_path / 'no' / 'data.yaml'}") == 1
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [(DumpError("because"), 1, "coil-migrator: because\n"), (KeyboardInterrupt(), INTERRUPTED, "interrupted\n")],
)
def test_the_last_words_say_what_was_done(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
) -> None:
    def command(_progress: Progress, done: list[str]) -> int:
        done.append("something was done")
        raise error

    assert program._guarded(command) == code
    assert capsys.readouterr().err.endswith(f"{words}  something was done\nrun it again to go on\n")


def test_sigterm_ends_the_work_as_an_interrupt_does(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.get_running_loop().create_future()

    def command(_progress: Progress, _done: list[str]) -> int:
        asyncio.run(program._stoppable(work()))
        raise AssertionError("it ended")

    assert program._guarded(command) == INTERRUPTED
    assert capsys.readouterr().err == "coil-migrator: interrupted\nnothing was changed\n"


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "data.yaml"
    path.write_text("before")
    write_whole(path, "after")
    assert path.read_text() == "after"
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\udc80")
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


POLICY = """\
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressPolicy
metadata: {name: a}
spec: {egressGatewayName: office, egressIP: {allocatorPolicy: %s}, appliedTo: {podSelector: {matchLabels: {app: web}}}}
"""


def test_manifests_are_checked_and_converted_without_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    file.write_text(POLICY % "best")
    other.write_text("a: 1\n")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert run(monkeypatch, "check", "--local", "-f", str(file), "-f", str(other)) == 4
    assert "EgressPolicy default/a: spec.egressIP.allocatorPolicy 'best'" in capsys.readouterr().out
    assert run(monkeypatch, "convert", "-f", str(other), "-f", str(file)) == 0
    converted = capsys.readouterr().out
    assert converted.startswith("a: 1\n---\n")
    file.write_text(converted)
    assert run(monkeypatch, "check", "--local", "-f", str(file)) == 0
    assert "it waits" in capsys.readouterr().out


def test_what_cannot_be_converted_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "a.yaml"
    for text, words in (
        ("a: [", "while parsing"),
        (POLICY.replace("v1beta1", "v1") % "rr", "only egressgateway.spidernet.io/v1beta1"),
    ):
        file.write_text(text)
        assert run(monkeypatch, "convert", "-f", str(file)) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert words in said.err


def test_flags_that_need_others(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("convert",), ("check", "--local")):
        with pytest.raises(SystemExit) as end:
            run(monkeypatch, *command)
        assert end.value.code == 2
        assert "give --filename" in capsys.readouterr().err
