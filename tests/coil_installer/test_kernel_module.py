import errno
from io import StringIO
from pathlib import Path

from coil_installer.main import report_missing


class Loader:
    """A kernel's modules; those in `absent` cannot be had."""

    def __init__(self, *absent: str) -> None:
        self.loaded: list[str] = []
        self._absent = absent

    def load(self, name: str) -> None:
        if name in self._absent:
            raise OSError(errno.ENOENT, "none")
        self.loaded.append(name)


def test_each_module_is_loaded_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "fou").mkdir()
    loader, out = Loader(), StringIO()
    report_missing(["fou", "fou6"], out, load=loader.load, root=tmp_path)
    assert loader.loaded == ["fou6"]
    assert out.getvalue() == ""


def test_one_that_cannot_be_had_is_told_and_the_others_are_loaded(tmp_path: Path) -> None:
    loader, out = Loader("fou"), StringIO()
    report_missing(["fou", "fou6"], out, load=loader.load, root=tmp_path)
    assert loader.loaded == ["fou6"]
    [line] = out.getvalue().splitlines()
    assert line.startswith("coil-installer: the kernel module fou is not loaded")
    assert line.endswith("on the node, run `modprobe fou`")
