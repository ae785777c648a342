"""The program: complete, and without what it does not need or could not import."""

import marshal
import shutil
from importlib import import_module
from pathlib import Path
from types import CodeType

import pytest

import coil_cni
from coil_freezer.error import FreezeError
from coil_freezer.frame import render_frame
from coil_freezer.program import read_program

SOURCE = Path(coil_cni.__file__).parent


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return shutil.copytree(SOURCE, tmp_path / "coil_cni", ignore=shutil.ignore_patterns("__pycache__"))


def test_every_module_is_there_but_those_for_packages_and_for_python() -> None:
    stems = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    program = read_program(SOURCE)
    assert set(program.modules) == {f"coil_cni.{stem}" for stem in stems}
    assert set(program.builtins) == {"_socket", "posix", "select", "time"}


def test_code_has_no_lines_and_no_docstrings() -> None:
    def check(code: CodeType) -> None:
        assert code.co_linetable == b""
        for value in code.co_consts:
            if isinstance(value, CodeType):
                check(value)

    for name, data in read_program(SOURCE).modules.items():
        code = marshal.loads(data)  # noqa: S302 - our own
        check(code)
        assert import_module(name).__doc__ not in code.co_consts


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("error.py", "def (", "does not compile"),
        ("error.py", "\0", "does not compile"),
        ("__init__.py", '"""Text."""\nA = 1\n', "more than a docstring"),
        ("main.py", "import coil_cni.plugin\n", "no import of coil_cni.plugin but by `from`"),
        ("main.py", "import time as clock\n", "no import of time but by `from`"),
        ("main.py", "from coil_cni.absent import main\n", "lacks the module coil_cni.absent"),
        ("main.py", "def main():\n    from coil_cni.absent import main\n", "lacks the module coil_cni.absent"),
        ("main.py", "import os\nos.getpid()\n", "no getpid from the module os"),
        ("main.py", "def main():\n    from binascii import a2b_base64\n", "no a2b_base64 from the module binascii"),
        ("main.py", "import posix\nposix.stat('/')\n", "no stat from the module posix"),
        ("main.py", "from time import sleep\n", "no sleep from the module time"),
    ],
)
def test_what_cannot_run_is_not_built(source: Path, name: str, text: str, message: str) -> None:
    (source / name).write_text(text)
    with pytest.raises(FreezeError, match=message):
        render_frame(read_program(source))


def test_an_interpreter_without_its_own_sockets_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was built elsewhere has them: a shared library, which a static program cannot load."""
    monkeypatch.setattr("sys.builtin_module_names", ("posix", "select", "time"))
    with pytest.raises(FreezeError, match="has _socket not built in"):
        render_frame(read_program(SOURCE))


def test_what_only_type_checkers_import_is_not_asked_for(source: Path) -> None:
    (source / "main.py").write_text("TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from typing import Any\n")
    assert "typing" not in read_program(source).builtins
