"""A file that may be anything, on a disk that may do anything."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from coild.model.journal_file import COMPACT_BYTES, HEADER, LARGEST_BYTES, JournalFile

LOG = structlog.get_logger()
RECORDS = [b'["given","c1"]', b'["taken","c1"]', b"third"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coild.journal"


@pytest.fixture
def said() -> Iterator[list[Any]]:
    with capture_logs() as logs:
        yield logs


def written(path: Path, *records: bytes) -> JournalFile:
    file = JournalFile(path, log=LOG)
    assert file.load() == []
    file.replace([])
    for record in records:
        file.append(record)
    return file


def read(path: Path) -> list[bytes]:
    return JournalFile(path, log=LOG).load()


def has_grown(file: JournalFile) -> bool:
    return file.grown


def test_what_was_written_is_read(path: Path, said: list[Any]) -> None:
    written(path, *RECORDS)
    assert read(path) == RECORDS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert said == []


def test_without_a_path_nothing_is_kept(said: list[Any]) -> None:
    file = JournalFile(None, log=LOG)
    assert file.load() == []
    file.replace(RECORDS)
    file.append(b"x")
    file.close()
    assert not file.grown
    assert said == []


def test_nothing_is_written_before_the_old_was_taken_over(path: Path) -> None:
    written(path, *RECORDS).close()
    file = JournalFile(path, log=LOG)
    file.append(b"early")
    assert read(path) == RECORDS
    file.replace([b"new"])
    file.append(b"late")
    assert read(path) == [b"new", b"late"]
    file.close()
    file.append(b"after the end")
    assert read(path) == [b"new", b"late"]


def test_it_is_rewritten_when_it_has_doubled_and_not_before_it_is_worth_it(path: Path) -> None:
    file = written(path)
    record = b"x" * 1000
    count = 0
    while not has_grown(file):
        file.append(record)
        count += 1
    assert COMPACT_BYTES <= path.stat().st_size < COMPACT_BYTES + 2000
    file.replace([record] * count)
    for _ in range(count):
        assert not has_grown(file)
        file.append(record)
    file.append(record)
    assert has_grown(file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(damage=st.data())
def test_a_damaged_file_loses_what_is_damaged_and_nothing_else(tmp_path: Path, damage: st.DataObject) -> None:
    path = tmp_path / "coild.journal"
    path.unlink(missing_ok=True)
    written(path, *RECORDS).close()
    data = bytearray(path.read_bytes())
    start = damage.draw(st.integers(len(HEADER), len(data) - 1))
    junk = damage.draw(st.binary(max_size=40))
    end = damage.draw(st.integers(start, len(data)))
    data[start:end] = junk
    path.write_bytes(data)
    found = read(path)
    assert set(found) <= set(RECORDS)
    # What lies whole before the damage, or whole behind it, is found.
    whole = bytes(data[:start]).count(b"\n") - 1
    assert found[:whole] == RECORDS[:whole]


@pytest.mark.parametrize("length", range(len(HEADER)))
def test_a_file_cut_short_in_its_header_is_begun_anew(path: Path, length: int, said: list[Any]) -> None:
    path.write_bytes(HEADER[:length])
    file = JournalFile(path, log=LOG)
    assert file.load() == []
    file.replace([])
    file.append(b"x")
    assert read(path) == [b"x"]
    assert len(said) == (1 if 0 < length < len(HEADER) - 1 else 0), "without its last byte nothing is lost"


def test_a_later_version_is_begun_anew(path: Path, said: list[Any]) -> None:
    path.write_bytes(b"coild-journal 2\nwhatever\n")
    file = JournalFile(path, log=LOG)
    assert file.load() == []
    file.replace([b"x"])
    assert read(path) == [b"x"]
    assert len(said) == 1


@pytest.mark.parametrize("content", [b"root:x:0:0:root:/root:/bin/bash\n", b"\0" * 100, b"coild-journey 1\n"])
def test_a_file_of_somebody_else_is_left_alone(path: Path, content: bytes, said: list[Any]) -> None:
    path.write_bytes(content)
    file = JournalFile(path, log=LOG)
    assert file.load() == []
    file.replace([b"x"])
    file.append(b"x")
    assert path.read_bytes() == content
    assert [entry["event"] for entry in said] == ["journal not kept: the file is not a journal of coild"]


def test_links_pipes_and_folders_are_not_followed_awaited_or_written(tmp_path: Path, said: list[Any]) -> None:
    target = tmp_path / "target"
    target.write_bytes(HEADER)
    link, pipe, folder = (tmp_path / name for name in ("link", "pipe", "folder"))
    link.symlink_to(target)
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (link, pipe, folder):
        file = JournalFile(path, log=LOG)
        assert file.load() == []
        file.replace([b"x"])
        file.append(b"x")
    assert target.read_bytes() == HEADER
    assert len(said) == 3


def test_a_folder_that_is_not_there_is_said_once(tmp_path: Path, said: list[Any]) -> None:
    file = JournalFile(tmp_path / "none" / "journal", log=LOG)
    assert file.load() == []
    for _ in range(3):
        file.replace([b"x"])
        file.append(b"x")
    assert [entry["event"] for entry in said] == ["journal not rewritten"]


def test_a_full_disk_is_said_once_and_nothing_is_glued_together(
    path: Path, said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(path, b"first")
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[: len(data) // 2]))
    file.append(b"second")

    def fail(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    file.append(b"third")
    file.replace([b"nothing"])
    monkeypatch.setattr(os, "write", real)
    file.append(b"fourth")
    assert sorted(entry["event"] for entry in said) == ["journal not rewritten", "journal not written"]
    assert read(path) == [b"first", b"fourth"]
    assert not path.with_name("coild.journal.new").exists()


def test_a_file_that_cannot_be_rewritten_does_not_grow_without_bound(
    path: Path, said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(path)
    monkeypatch.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError(1, "no")))
    for _ in range(40):
        file.append(b"x" * (LARGEST_BYTES // 20))
        if file.grown:
            file.replace([])
    assert path.stat().st_size <= LARGEST_BYTES
    assert {entry["event"] for entry in said} == {
        "journal not rewritten",
        "journal not written: it has grown too large",
    }


def test_a_file_that_lacks_a_record_is_to_be_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    file = written(path, b"one")
    assert not has_grown(file)

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        file.append(b"two")
        assert has_grown(file)
        assert not file.replace([b"one", b"two"])
        assert has_grown(file)
    assert file.replace([b"one", b"two"])
    assert not has_grown(file)
    assert read(path) == [b"one", b"two"]
