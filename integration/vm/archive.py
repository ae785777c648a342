"""A cpio archive of the kind that Linux unpacks as its initial file system ("newc", initramfs buffer format)."""

import os
import shutil
import stat
from pathlib import Path, PurePosixPath
from typing import BinaryIO

_TRAILER = "TRAILER!!!"
_ALIGNMENT = 4


class Archive:
    """Writes entries to `output` one after the other; `close` ends it. Every folder is there before what is in it.

    Owners are dropped: everything belongs to root. Entries of one name are written once, the first wins.
    """

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._names: set[str] = set()
        self._written = 0

    def add_folder(self, name: PurePosixPath, *, mode: int = 0o755, mtime: float = 0) -> None:
        """A folder, and those above it."""
        if name == PurePosixPath("/"):
            return
        self.add_folder(name.parent)
        if self._is_new(name):
            self._header(str(name), mode=stat.S_IFDIR | mode, mtime=mtime, size=0)

    def add_bytes(self, name: PurePosixPath, content: bytes, *, mode: int = 0o644) -> None:
        """A file with that content."""
        self.add_folder(name.parent)
        if self._is_new(name):
            self._header(str(name), mode=stat.S_IFREG | mode, mtime=0, size=len(content))
            self._output.write(content)
            self._pad(len(content))

    def add_link(self, name: PurePosixPath, target: str) -> None:
        """A symbolic link."""
        self.add_folder(name.parent)
        if self._is_new(name):
            content = os.fsencode(target)
            self._header(str(name), mode=stat.S_IFLNK | 0o777, mtime=0, size=len(content))
            self._output.write(content)
            self._pad(len(content))

    def add_path(self, name: PurePosixPath, source: Path) -> None:
        """A file, link or empty folder as it is at `source`, with mode and time. Of other kinds nothing is added."""
        status = source.lstat()
        if stat.S_ISLNK(status.st_mode):
            self.add_link(name, str(source.readlink()))
        elif stat.S_ISDIR(status.st_mode):
            self.add_folder(name, mode=stat.S_IMODE(status.st_mode), mtime=status.st_mtime)
        elif stat.S_ISREG(status.st_mode):
            self.add_folder(name.parent)
            if self._is_new(name):
                self._add_file(name, source)

    def close(self) -> None:
        """Write the end; the output stays open."""
        self._header(_TRAILER, mode=0, mtime=0, size=0)
        self._output.flush()

    def _add_file(self, name: PurePosixPath, source: Path) -> None:
        with source.open("rb") as content:
            # Measured on what is open: somebody may put another file in its place.
            status = os.fstat(content.fileno())
            self._header(str(name), mode=status.st_mode, mtime=status.st_mtime, size=status.st_size)
            begin = self._output.tell()
            shutil.copyfileobj(content, self._output, 1 << 20)
            if self._output.tell() - begin != status.st_size:
                raise OSError(f"{source} changed while it was read")
        self._pad(status.st_size)

    def _is_new(self, name: PurePosixPath) -> bool:
        known = str(name) in self._names
        self._names.add(str(name))
        return not known

    def _header(self, name: str, *, mode: int, mtime: float, size: int) -> None:
        self._written += 1
        encoded = os.fsencode(name.removeprefix("/")) + b"\0"
        # inode, mode, user, group, links, time, size, device (2), special device (2), length of the name, checksum
        fields = (self._written, mode, 0, 0, 1, int(mtime), size, 0, 0, 0, 0, len(encoded), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields)
        self._output.write(header + encoded)
        self._pad(len(header) + len(encoded))

    def _pad(self, size: int) -> None:
        self._output.write(bytes(-size % _ALIGNMENT))
