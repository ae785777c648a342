"""A file of small records that survives the process, not the node: the bytes below `coild.addresses.journal`.

A header, then one record a line, each with a checksum; a line that does not match its own is skipped. Nothing is synced
to the disk: what the kernel has taken survives a kill -9, and a reboot takes the pods as well. Who needs more knows by
`intact` whether records are missing that this file had, and has to think of those that a power failure took.

Nothing depends on it, so its failures must not become failures of anything else: no method raises, and each kind of
failure is logged once. A file that this program did not write is left alone, and then nothing is written.
"""

import errno
import os
import stat
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from structlog.typing import FilteringBoundLogger

MAGIC = b"coild-journal "
HEADER = MAGIC + b"1\n"

COMPACT_BYTES = 256 << 10
"""A file is not worth rewriting before it is as large as that, and twice as large as after the last time."""

LARGEST_BYTES = 16 << 20
"""More than this is neither read nor written."""


class JournalFile:
    """`path` None: no journal is kept. Calls take microseconds, on a file system in memory such as /run."""

    def __init__(self, path: Path | None, *, log: FilteringBoundLogger) -> None:
        self._path = path
        self._log = log
        self._said: set[str] = set()
        self._descriptor: int | None = None
        self._size = 0
        self._full = COMPACT_BYTES
        self._torn = False
        self._missing = False
        self.intact = False
        """Whether `load` has found a journal, and all of what was written to it."""

    def load(self) -> list[bytes]:
        """The records of the file, the oldest first, or none. With a file that is not ours no journal is kept."""
        if self._path is None:
            return []
        try:
            data = _read(self._path)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._say("not read", error=str(error))
            self._path = None
            return []
        header, _, body = data.partition(b"\n")
        if not header.startswith(MAGIC) and not HEADER.startswith(data):
            self._say("not kept: the file is not a journal of coild")
            self._path = None
            return []
        if header + b"\n" != HEADER:
            if data:
                self._say("discarded: it was cut short, or is of another version")
            return []
        lines = body.split(b"\n")
        records = [record for line in lines if (record := _unframe(line)) is not None]
        if damaged := sum(line != b"" for line in lines) - len(records):
            self._say("damaged: records are lost", records=damaged)
        self.intact = not damaged
        return records

    def append(self, record: bytes) -> None:
        """Write one record. It must hold no line feed."""
        if self._descriptor is None:
            return
        line = _frame(record)
        if self._torn:
            line = b"\n" + line
        if self._size + len(line) > LARGEST_BYTES:
            self._missing = True
            self._say("not written: it has grown too large")
            return
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            self._missing = True
            self._say("not written", error=str(error))
            return
        # A full disk may have taken a part of a line: the next one must not be glued to it.
        self._torn = written < len(line)
        self._missing |= self._torn
        self._size += written
        if self._torn:
            self._say("not written", error=os.strerror(errno.ENOSPC))

    @property
    def grown(self) -> bool:
        """Whether it is time for `replace`: the file is large, or lacks a record."""
        return self._missing or self._size >= self._full

    def replace(self, records: Iterable[bytes]) -> bool:
        """Write the file anew, all of it or nothing; whether that was done. It is readable for root only."""
        if self._path is None:
            return False
        data = HEADER + b"".join(map(_frame, records))
        draft = self._path.with_name(f"{self._path.name}.new")
        try:
            draft.unlink(missing_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._fail(error)
            return False
        try:
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            draft.replace(self._path)
        except OSError as error:
            os.close(descriptor)
            _discard(draft)
            self._fail(error)
            return False
        self.close()
        self._descriptor = descriptor
        self._size, self._torn, self._missing = len(data), False, False
        self._full = max(COMPACT_BYTES, 2 * self._size)
        return True

    def close(self) -> None:
        """Nothing is written after this."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _fail(self, error: OSError) -> None:
        self._say("not rewritten", error=str(error))
        self._full = 2 * max(self._size, COMPACT_BYTES)  # not with every record again

    def _say(self, what: str, **details: object) -> None:
        if what not in self._said:
            self._said.add(what)
            self._log.warning(f"journal {what}", journal=str(self._path), **details)


def _read(path: Path) -> bytes:
    # Not through a link, and not from a pipe that would keep us waiting.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(LARGEST_BYTES)
    finally:
        os.close(descriptor)


def _discard(draft: Path) -> None:
    # What stays is of no consequence: the next `replace` begins by removing it.
    with suppress(OSError):
        draft.unlink(missing_ok=True)


def _frame(record: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(record), record)


def _unframe(line: bytes) -> bytes | None:
    checksum, _, record = line.partition(b" ")
    return record if checksum == b"%08x" % zlib.crc32(record) and record else None
