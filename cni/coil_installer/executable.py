"""The plugin's executable, looked at before a node gets it: it must need nothing of the node.

Source: elf(5).
"""

from coil_installer.error import InstallError

_MAGIC = b"\x7fELF"
_64_BIT, _LITTLE_ENDIAN = 2, 1
_PT_DYNAMIC, _PT_INTERP = 2, 3


def check_self_contained(data: bytes) -> None:
    """Raises InstallError when `data` is no 64-bit ELF file, or one that wants a loader or shared libraries."""
    kinds = _segment_kinds(data)
    if not kinds:
        raise InstallError("COIL_PATH is not an executable of 64 bits; build it with python -m coil_freezer")
    if kinds & {_PT_INTERP, _PT_DYNAMIC}:
        raise InstallError("COIL_PATH needs shared libraries, which a node may not have; see python -m coil_freezer")


def _segment_kinds(data: bytes) -> set[int]:
    """p_type of every program header; empty when it is not such a file, or not all of it."""
    if len(data) < 64 or data[:4] != _MAGIC or data[4] != _64_BIT or data[5] != _LITTLE_ENDIAN:
        return set()
    offset = int.from_bytes(data[32:40], "little")  # e_phoff
    size = int.from_bytes(data[54:56], "little")  # e_phentsize
    count = int.from_bytes(data[56:58], "little")  # e_phnum
    if offset + size * count > len(data):
        return set()
    starts = range(offset, offset + size * count, size) if size else ()
    return {int.from_bytes(data[start : start + 4], "little") for start in starts}
