"""Steps on top of each other, with an overlay and without one, in a root that holds busybox alone."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from integration.image.context import CopiedFile
from integration.image.dockerfile import Run
from integration.image.error import ImageBuildError
from integration.image.layers import Input, Layers, base_name, name_layers
from integration.patience import wait_until

BASE = "busybox"


@pytest.fixture(params=[True, False], ids=["overlay", "copy"])
def layers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Layers]:
    """With a base that is there already."""
    overlay: bool = request.param
    files = tmp_path / f"{'difference' if overlay else 'root'}-{base_name(BASE)}" / "files"
    for name in ("bin", "proc", "dev", "etc"):
        (files / name).mkdir(parents=True)
    (files / "etc/resolv.conf").touch()
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, files / "bin/busybox")
    for name in ("sh", "cat", "echo", "rm", "sleep", "stat", "test"):
        (files / "bin" / name).symlink_to("busybox")
    yield Layers(tmp_path, overlay=overlay)
    assert list(tmp_path.glob("new.*")) == []


def make(layers: Layers, *steps: Input) -> None:
    layers.make(name_layers(BASE, steps), base=BASE)


def script(text: str, **environment: str) -> Run:
    return Run(f"set -e; {text}", environment)


def test_each_step_sees_what_those_before_it_left(layers: Layers) -> None:
    make(
        layers,
        script('echo "$WORD" > /one; echo 2 > /two', WORD="first word"),
        script('test "$(cat /one)" = "first word"; test -z "$WORD"; rm /one'),
        (CopiedFile(PurePosixPath("/folder/program"), b"content", executable=True),),
        script("test ! -e /one; test -e /two; test $(cat /folder/program) = content"),
        script("test $(stat -c %a /folder/program) = 755"),
    )


def test_a_step_that_fails_says_what_it_said(layers: Layers) -> None:
    with pytest.raises(ImageBuildError, match=r"exit code 3[\s\S]*the last word"):
        make(layers, script("echo before"), script("echo the last word >&2; exit 3"))
    make(layers, script("echo before"), script("echo done"))


def test_a_step_is_not_carried_out_twice(layers: Layers, capsys: pytest.CaptureFixture[str]) -> None:
    make(layers, script("echo first"))
    assert "echo first" in capsys.readouterr().out
    make(layers, script("echo first"))
    assert capsys.readouterr().out == ""


def test_nothing_of_this_machine_changes(layers: Layers) -> None:
    resolver, mounts = Path("/etc/resolv.conf"), Path("/proc/self/mountinfo")
    before = resolver.read_text(), mounts.read_text()
    seen = 'test "$(cat /etc/resolv.conf)" = "$EXPECTED"; test -c /dev/null; test -d /proc/1'
    make(layers, script(seen, EXPECTED=before[0].rstrip("\n")))
    assert (resolver.read_text(), mounts.read_text()) == before


def test_a_step_ends_with_whoever_had_it_done(tmp_path: Path) -> None:
    word = f"{os.getpid()}.75"
    program = (
        "import sys, pathlib\n"
        "from integration.image.command import run_logged\n"
        "run_logged(['sh', '-c', f'sleep {sys.argv[1]} & wait'], log=pathlib.Path(sys.argv[2]))"
    )
    with subprocess.Popen([sys.executable, "-c", program, word, str(tmp_path / "log")]) as process:
        wait_until(lambda: sleepers(word), what="the step begins")
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    wait_until(lambda: not sleepers(word), what="the step ends")


def sleepers(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", word.encode()]:
            found.append(path.parent.name)
    return found
