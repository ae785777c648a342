"""The guest's initial file system, as busybox unpacks it."""

import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from integration.vm.archive import Archive


def pack(fill: Callable[[Archive], object]) -> bytes:
    output = io.BytesIO()
    archive = Archive(output)
    fill(archive)
    archive.close()
    return output.getvalue()


def unpack(data: bytes, folder: Path) -> None:
    command = ["busybox", "cpio", "-idm"]
    subprocess.run(command, input=data, cwd=folder, check=True, capture_output=True, timeout=60)


def test_files_links_and_folders_come_out_as_they_were(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target):
        folder.mkdir()
    program = source / "program"
    program.write_bytes(b"x" * 100_001)
    program.chmod(0o750)
    os.utime(program, (1_000_000_000, 1_000_000_000))
    (source / "link").symlink_to("program")

    def fill(archive: Archive) -> None:
        archive.add_path(PurePosixPath("/deep/below/program"), program)
        archive.add_path(PurePosixPath("/deep/link"), source / "link")
        archive.add_path(PurePosixPath("/folder"), source)
        archive.add_bytes(PurePosixPath("/init"), b"#!/bin/sh\n", mode=0o755)

    unpack(pack(fill), target)
    made = target / "deep" / "below" / "program"
    assert made.read_bytes() == program.read_bytes()
    assert made.stat().st_mode == program.stat().st_mode
    assert made.stat().st_mtime == 1_000_000_000
    assert (target / "deep" / "link").readlink() == Path("program")
    assert (target / "folder").is_dir()
    assert (target / "init").stat().st_mode & 0o777 == 0o755


def test_of_one_name_the_first_wins(tmp_path: Path) -> None:
    def fill(archive: Archive) -> None:
        for content in (b"first", b"second"):
            archive.add_bytes(PurePosixPath("/file"), content)

    unpack(pack(fill), tmp_path)
    assert (tmp_path / "file").read_bytes() == b"first"


def test_what_is_neither_file_nor_link_nor_folder_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert pack(lambda archive: archive.add_path(PurePosixPath("/fifo"), tmp_path / "fifo")) == pack(lambda _: None)


@given(st.dictionaries(st.text("abc/", min_size=1, max_size=9), st.binary(max_size=9), max_size=5))
def test_every_entry_begins_at_a_multiple_of_four(files: dict[str, bytes]) -> None:
    def fill(archive: Archive) -> None:
        for name, content in files.items():
            archive.add_bytes(PurePosixPath("/") / name.strip("/") / "x", content)

    data = pack(fill)
    assert len(data) % 4 == 0
    at = 0
    names = []
    while at < len(data):
        assert data[at : at + 6] == b"070701"
        size, length = (int(data[at + begin : at + begin + 8], 16) for begin in (54, 94))
        names.append(data[at + 110 : at + 110 + length - 1].decode())
        at += -(-(110 + length) // 4) * 4
        at += -(-size // 4) * 4
    assert names[-1] == "TRAILER!!!"
    assert len(names) == len(set(names))
    for number, name in enumerate(names[:-1]):
        folder, _, _ = name.rpartition("/")
        assert not folder or folder in names[:number]
