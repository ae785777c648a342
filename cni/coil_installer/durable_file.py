"""Files that are there completely or not at all, also after a crash of the machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def staged_file(path: Path, data: bytes, *, mode: int) -> Iterator[Path]:
    """The content in a file beside `path`; moved there when the block ends, removed when it fails.

    Both the content and the new name are on disk (fsync) afterwards. The file beside has a fixed name, so that what
    a crash leaves is overwritten the next time; one installer works on a directory at a time.
    """
    staged = _beside(path)
    try:
        with staged.open("wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield staged
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_file(path: Path, data: bytes, *, mode: int) -> None:
    """Put `data` at `path`; nothing is written when it is there already with that mode."""
    if not is_file_with(path, data, mode=mode):
        with staged_file(path, data, mode=mode):
            pass


def is_file_with(path: Path, data: bytes, *, mode: int) -> bool:
    """Whether the file is there, with that content and mode."""
    with suppress(FileNotFoundError):
        return path.read_bytes() == data and path.stat().st_mode & 0o7777 == mode
    return False


def remove_file(path: Path) -> None:
    """Idempotent; also removes what a crash left beside."""
    if path.parent.is_dir():
        path.unlink(missing_ok=True)
        _beside(path).unlink(missing_ok=True)
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")
