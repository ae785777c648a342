"""A dump is there when it is whole, for its owner only, and no longer than it may be."""

import stat
from pathlib import Path
from zipfile import ZipFile

import pytest

from kubectl_coil.sysdump.archive import open_archive


def test_files_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "dump.zip"
    with open_archive(path, limit=10) as archive:
        archive.add("one", b"12345")
        archive.add("two", b"123456")
        archive.add("three", b"12345")
        archive.fail("four", "it is not there")
        assert not path.exists()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ZipFile(path).namelist() == ["one", "three"]
    assert [(each.name, each.bytes, bool(each.error)) for each in archive.files] == [
        ("one", 5, False),
        ("two", 0, True),
        ("three", 5, False),
        ("four", 0, True),
    ]


def interrupted(path: Path) -> None:
    with open_archive(path, limit=10) as archive:
        archive.add("one", b"12345")
        raise KeyboardInterrupt


def test_nothing_is_left_of_one_that_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "dump.zip")
    assert [*tmp_path.iterdir()] == []


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "dump.zip").write_text("mine")
    with pytest.raises(FileExistsError, match="exists"), open_archive(tmp_path / "dump.zip", limit=10):
        pass
    assert (tmp_path / "dump.zip").read_text() == "mine"
