"""What Python would keep beside its sources, for those of the guest's that have none or an old one.

Under emulation a module takes longer to compile than to run, and each program of the tests would compile its modules
again: what one of them writes stays in the guest, or is not written at all (PYTHONDONTWRITEBYTECODE).
"""

import marshal
import struct
from collections.abc import Iterable, Iterator
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path

_HEADER = struct.Struct("<4sIII")
_WORD = 0xFFFFFFFF


def missing_bytecode(files: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
    """Path and content of the cache file of each Python source among them that has no cache file of its own.

    Files that are no valid Python are passed over, as their import tells what is wrong.
    """
    for path in files:
        if path.suffix != ".py" or path.is_symlink() or not path.is_file():
            continue
        status = path.stat()
        header = header_of(int(status.st_mtime), status.st_size)
        cache = Path(cache_from_source(path))
        if _begins_with(cache, header):
            continue
        try:
            code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            continue
        yield cache, header + marshal.dumps(code)


def header_of(mtime: int, size: int) -> bytes:
    """How a cache file begins that is good for a source of that time and size (PEP 552, timestamps)."""
    return _HEADER.pack(MAGIC_NUMBER, 0, mtime & _WORD, size & _WORD)


def _begins_with(path: Path, header: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(header)) == header
    except OSError:
        return False
