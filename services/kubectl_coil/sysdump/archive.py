"""A zip file that grows up to a bound, and is there only when it is whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from kubectl_coil.sysdump.document import FileDocument


@dataclass(slots=True)
class Archive:
    """`limit` bounds the sizes of all files together, in bytes, before they are compressed."""

    _zip: ZipFile
    limit: int
    files: list[FileDocument] = field(default_factory=list)

    def add(self, name: str, content: bytes, *, error: str = "") -> None:
        """A file; beyond the bound it is left out, and told. Raises OSError."""
        used = sum(each.bytes for each in self.files)
        if used + len(content) > self.limit:
            self.fail(name, f"left out: the dump would have more than {self.limit} bytes")
            return
        self._zip.writestr(name, content)
        self.files.append(FileDocument(name=name, bytes=len(content), error=error))

    def fail(self, name: str, error: str) -> None:
        """Tell of a file that there is not."""
        self.files.append(FileDocument(name=name, bytes=0, error=error))


@contextmanager
def open_archive(path: Path, *, limit: int) -> Iterator[Archive]:
    """At the end of the block the file is at `path`, readable by its owner only; after an error there is none.

    Raises OSError, FileExistsError among them.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream, ZipFile(stream, "w", ZIP_DEFLATED) as file:
            yield Archive(file, limit)
        draft.rename(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
