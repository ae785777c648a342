"""The build: whole or not there, and what it says where something is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from coil_freezer.error import FreezeError
from coil_freezer.executable import build_executable

PROGRAM = "int main(void) { return 3; }\n"
INSTALL = rf"install gcc libc6-dev libpython{sys.version_info.major}\.{sys.version_info.minor}-dev"


def test_the_source_becomes_a_program_in_its_place(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "coil"
    build_executable(PROGRAM, target)
    assert subprocess.run([target], check=False, timeout=60).returncode == 3
    assert [path.name for path in target.parent.iterdir()] == ["coil"]


def test_a_source_that_does_not_compile_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "coil"
    target.write_text("the old one")
    with pytest.raises(FreezeError, match=r"compiler failed(.|\n)*nonsense"):
        build_executable("nonsense", target)
    assert [path.name for path in tmp_path.iterdir()] == ["coil"]
    assert target.read_text() == "the old one"


def test_a_missing_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FreezeError, match=INSTALL):
        build_executable(PROGRAM, tmp_path / "coil")


def test_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_config_var", lambda _: str(tmp_path))
    with pytest.raises(FreezeError, match=f"static library .* {INSTALL}"):
        build_executable(PROGRAM, tmp_path / "coil")


def test_the_command(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "coil_freezer", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    target = tmp_path / "coil"
    empty = run(str(target), "--source", str(tmp_path))
    assert (empty.returncode, empty.stdout) == (1, "")
    assert empty.stderr.startswith("coil-freezer: the plugin lacks the module")
    assert run(str(target)).returncode == 0
    answer = subprocess.run([target], env={"CNI_COMMAND": "VERSION"}, capture_output=True, timeout=60, check=False)
    assert (answer.returncode, answer.stderr) == (0, b"")
