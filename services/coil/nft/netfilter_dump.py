"""What the kernel's tables hold, read without libnftables: chains, rules, sets, counters, elements.

The library begins a listing anew whenever anything in the namespace's tables changes meanwhile. Where something does so
five times a second, as a node's fuse, a listing that takes longer never ends. A dump goes on: what is short is read
again if something has changed meanwhile, and for what is long the caller makes sure.

Source: linux/netfilter/nf_tables.h.
"""

import struct
import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from coil.kernel.nft_table import TableFamily
from coil.nft.error import NftError
from coil.nft.netfilter_message import attributes, converse, text

_ATTEMPTS: Final = 20
_GET_GENERATION: Final = 16


class Dump(IntEnum):
    """The requests; what answers has the number before."""

    CHAINS = 4
    RULES = 7
    SETS = 10
    ELEMENTS = 13
    OBJECTS = 19


def dump_objects(kind: Dump, family: TableFamily, table: str, *, doing: str) -> list[dict[int, bytes]]:
    """The attributes of all chains, rules, sets or named objects of the table, in the kernel's order; all at one time.
    Raises NftError, also where there is no such table.
    """
    for _ in range(_ATTEMPTS):
        found: list[dict[int, bytes]] = []
        whole = True
        for answer, body, consistent in converse(kind, family, text(1, table), doing=doing):
            whole = whole and consistent
            if answer == kind - 1:
                found.append(dict(attributes(body)))
        if whole:
            # The kernel tells of all tables' chains.
            return [entry for entry in found if entry.get(1) == table.encode() + b"\0"]
    raise NftError(doing=doing, reason="the tables do not stop changing")


def dump_elements(family: TableFamily, table: str, name: str, *, doing: str) -> Iterator[bytes]:
    """The elements of a set in pieces, each a sequence of attributes NFTA_LIST_ELEM. Raises NftError, also where there
    is no such set.

    What changes in the set meanwhile may or may not be there, and while the kernel makes room for more elements, some
    may be missing: what seems to be different has to be read again.
    """
    for answer, body, _ in converse(Dump.ELEMENTS, family, text(1, table) + text(2, name), doing=doing):
        if answer == Dump.ELEMENTS - 1:
            yield from (payload for kind, payload in attributes(body) if kind == 3)


def read_generation(*, doing: str) -> int:
    """How often the namespace's tables have changed. Raises NftError."""
    answers = converse(_GET_GENERATION, None, b"", doing=doing, dump=False)
    [number] = [dict(attributes(body))[1] for answer, body, _ in answers if answer == _GET_GENERATION - 1]
    return int.from_bytes(number, "big")


def cut_elements(piece: bytes) -> Iterator[tuple[bytes, bytes, bytes, int]]:
    """Key, end of the key (empty: none), value (empty: none) and flags of each element of a piece. Pure."""
    place = 0
    while place + 4 <= len(piece):
        cut = _Cut.like(piece, place)
        end = place + cut.step
        yield cut.element
        # Most elements differ from the one before in nothing but key and value.
        if cut.shape is not None and end < len(piece):
            rest = memoryview(piece)[end : end + (len(piece) - end) // cut.step * cut.step]
            for head, key, middle, value, tail in cut.shape.iter_unpack(rest):
                if head != cut.head or middle != cut.middle or tail != cut.tail:
                    break
                yield key, b"", value, 0
                end += cut.step
        place = end


class _Cut:
    """How one element lies in the bytes. `shape` is None where it has more than a key and perhaps a value."""

    __slots__ = ("element", "head", "middle", "shape", "step", "tail")

    def __init__(self, element: tuple[bytes, bytes, bytes, int], step: int) -> None:
        self.element = element
        self.step = step
        self.shape: struct.Struct | None = None
        self.head = self.middle = self.tail = b""

    @classmethod
    def like(cls, piece: bytes, place: int) -> "_Cut":
        length = int.from_bytes(piece[place : place + 2], sys.byteorder)
        step = length + 3 & ~3
        body = piece[place + 4 : place + length]
        parts = list(attributes(body))
        found = dict(parts)
        key, end, value = (_payload(found.get(kind)) for kind in (1, 10, 2))
        cut = cls((key, end, value, int.from_bytes(found.get(3, b""), "big")), step)
        kinds = [kind for kind, _ in parts]
        if kinds in ([1], [1, 2]):
            # Heads of the element, of the key's attribute and of its value; then those of the value's.
            room = len(key) + 3 & ~3
            used = 12 + room + (8 + len(value) if value else 0)
            sizes = (12, len(key), room - len(key) + (8 if value else 0), len(value), step - used)
            cut.shape = struct.Struct("".join(f"{size}s" for size in sizes))
            cut.head, _, cut.middle, _, cut.tail = cut.shape.unpack_from(piece, place)
        return cut


def _payload(data: bytes | None) -> bytes:
    """Of an attribute that holds another, NFTA_DATA_VALUE."""
    return b"" if data is None else dict(attributes(data)).get(1, b"")
