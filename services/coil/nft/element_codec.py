"""Elements of sets and maps: from the kernel's bytes to the words of `coil.kernel.nft_element`, and back. Pure.

A range of a set with a key of one type is two elements, where it begins and what is behind it; the last may lack the
second. With a key of several types it is one, with two keys, of which each part has room for whole words of 32 bits;
and the library turns numbers in the machine's order round there, in elements as in rules (test_table_reconciler).
"""

import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Address
from operator import itemgetter
from typing import Final, cast

from coil.kernel.nft_element import ElementKey, ElementValue
from coil.kernel.nft_table import DataType, NftSet
from coil.nft.netfilter import attributes

_INTERVAL_END, _CATCH_ALL = 0x1, 0x2
_LIST_ELEMENT, _VALUE = 1, 1  # NFTA_LIST_ELEM, NFTA_DATA_VALUE
_KEY, _DATA, _FLAGS, _KEY_END = 1, 2, 3, 10  # NFTA_SET_ELEM_*
_NESTED: Final = 0x8000
_SIZES: Final = {
    DataType.IPV4: 4,
    DataType.IPV6: 16,
    DataType.ETHER: 6,
    DataType.CLASS: 4,
    DataType.MARK: 4,
    DataType.PACKET_FAMILY: 1,
    DataType.PROTOCOL: 1,
    DataType.PORT: 2,
    DataType.LINK: 16,
    DataType.ND_TARGET: 16,
}


def decode_elements(wanted: NftSet, pieces: Iterable[bytes]) -> dict[ElementKey, ElementValue]:
    """What is in a set of that type, whose elements do not expire."""
    elements = (element for piece in pieces for element in cut_elements(piece))
    decode_value = _value_decoder(wanted)
    if len(wanted.key) > 1:
        return {_parts(wanted, key, end or key): decode_value(value) for key, end, value, _ in elements}
    [kind] = wanted.key
    if wanted.intervals:
        return {_range(kind, first, last): decode_value(value) for first, last, value in _spans(kind, elements)}
    decode = _WORDS[kind]
    return {"*" if flags & _CATCH_ALL else decode(key): decode_value(value) for key, _, value, flags in elements}


def is_writable(wanted: NftSet) -> bool:
    """Whether `encode_elements` knows how elements of such a set are written: those that expire it does not."""
    return not wanted.timeouts


def encode_elements(wanted: NftSet, elements: Iterable[tuple[ElementKey, ElementValue]]) -> Iterator[bytes]:
    """An attribute NFTA_LIST_ELEM, or two, for each element of a set that `is_writable`, with its value if it has
    one.
    """
    if wanted.intervals and len(wanted.key) == 1:
        yield from _encode_bounds(wanted, elements)
        return
    key_size = sum(_SIZES[kind] + 3 & ~3 for kind in wanted.key) if len(wanted.key) > 1 else _SIZES[wanted.key[0]]
    encode_key = partial(_encode_parts, wanted) if len(wanted.key) > 1 else partial(_encode_single, wanted.key[0])
    heads: dict[int, _Heads] = {}
    values: dict[ElementValue, bytes] = {None: b""}  # many keys have the same
    for key, value in elements:
        packed = values.get(value)
        if packed is None:
            packed = values[value] = _BYTES[cast("DataType", wanted.value)](str(value))
        found = heads.get(len(packed))
        if found is None:
            found = heads[len(packed)] = _Heads.of(key_size, len(packed), ends=wanted.intervals)
        first, last = encode_key(key)
        yield found.element(first, last if wanted.intervals else b"", packed)


@dataclass(frozen=True, slots=True)
class _Heads:
    """What is around the variable parts of elements that are alike."""

    key: bytes
    end: bytes
    value: bytes
    tail: bytes

    @classmethod
    def of(cls, key: int, value: int, *, ends: bool) -> "_Heads":
        """Of keys and values of so many bytes; a value of none is left out. `ends`: the key is the start of a range."""
        keys = _around(_KEY, key), _around(_KEY_END, key) if ends else (b"", b""), _around(_DATA, value)
        (key_head, key_tail), (end_head, end_tail), (value_head, value_tail) = keys
        if not value:
            value_head = value_tail = b""
        sizes = (key + len(key_head + key_tail), (key + len(end_head + end_tail)) * ends, value)
        whole = 4 + sum(sizes) + len(value_head + value_tail)
        return cls(
            struct.pack("=HH", whole, _LIST_ELEMENT | _NESTED) + key_head,
            key_tail + end_head,
            end_tail + value_head,
            value_tail,
        )

    def element(self, first: bytes, last: bytes, value: bytes) -> bytes:
        return b"".join((self.key, first, self.end, last, self.value, value, self.tail))


def _around(kind: int, size: int) -> tuple[bytes, bytes]:
    """What is before and behind data of that size, in an attribute that holds an NFTA_DATA_VALUE."""
    padding = -size % 4
    return struct.pack("=HHHH", 8 + size + padding, kind | _NESTED, 4 + size, _VALUE), b"\0" * padding


def _encode_bounds(wanted: NftSet, elements: Iterable[tuple[ElementKey, ElementValue]]) -> Iterator[bytes]:
    """Where each range begins, and what is behind it, in their order."""
    [kind] = wanted.key
    size = _SIZES[kind]
    ranges = ((*_encode_range(kind, cast("str", key)), value) for key, value in elements)
    ends = _Heads.of(size, 0, ends=False)
    for first, last, value in sorted(ranges, key=itemgetter(0)):
        packed = b"" if value is None else _BYTES[cast("DataType", wanted.value)](str(value))
        yield _Heads.of(size, len(packed), ends=False).element(first, b"", packed)
        behind = int.from_bytes(last, "big") + 1
        if behind >> size * 8:
            continue
        end = ends.element(behind.to_bytes(size, "big"), b"", b"")
        yield struct.pack("=H", len(end) + len(_END)) + end[2:] + _END


_END: Final = struct.pack("=HH", 8, _FLAGS) + _INTERVAL_END.to_bytes(4, "big")
"""An attribute that says that a range ends before the key."""


def _encode_single(kind: DataType, key: ElementKey) -> tuple[bytes, bytes]:
    return _BYTES[kind](cast("str", key)), b""


def _encode_parts(wanted: NftSet, key: ElementKey) -> tuple[bytes, bytes]:
    swapped = _swapped(wanted)
    first, last = b"", b""
    for kind, word in zip(wanted.key, key, strict=True):
        start, end = _encode_range(kind, word)
        if kind in swapped:
            start, end = start[::-1], end[::-1]
        padding = b"\0" * (-len(start) % 4)
        first, last = first + start + padding, last + end + padding
    return first, last


def _swapped(wanted: NftSet) -> tuple[DataType, ...]:
    """What is kept in network order, unlike in a packet's registers: ranges are compared octet by octet."""
    return _HOST_ORDER if wanted.intervals and sys.byteorder == "little" else ()


def _encode_range(kind: DataType, word: str) -> tuple[bytes, bytes]:
    encode = _BYTES[kind]
    start, dash, end = word.partition("-")
    if dash:
        return encode(start), encode(end)
    address, slash, length = word.partition("/")
    first = encode(address)
    if not slash:
        return first, first
    bits = len(first) * 8
    hosts = (1 << bits - int(length)) - 1
    return first, (int.from_bytes(first, "big") | hosts).to_bytes(len(first), "big")


def _value_decoder(wanted: NftSet) -> Callable[[bytes], ElementValue]:
    if wanted.value is None:
        return lambda _: None
    if wanted.value is DataType.MARK:
        return lambda value: int.from_bytes(value, sys.byteorder)
    decode = _WORDS[wanted.value]
    known: dict[bytes, str] = {}  # many keys have the same

    def remember(value: bytes) -> str:
        word = known.get(value)
        if word is None:
            word = known[value] = decode(value)
        return word

    return remember


def _spans(kind: DataType, elements: Iterable[tuple[bytes, bytes, bytes, int]]) -> Iterator[tuple[int, int, bytes]]:
    """First and last number, and value, of each range.

    Of several that begin at the same number only one counts: where somebody replaces elements during the dump, the old
    one and the new one may both be in it. What differs from what is wanted is read again anyway.
    """
    # What ends where something begins comes before it.
    bounds = sorted((int.from_bytes(key, "big"), not flags & _INTERVAL_END, value) for key, _, value, flags in elements)
    behind = 1 << _SIZES[kind] * 8
    for number, begins, value in reversed(bounds):
        if begins and number < behind:
            yield number, behind - 1, value
        behind = number


def _parts(wanted: NftSet, key: bytes, end: bytes) -> tuple[str, ...]:
    swapped = _swapped(wanted)
    words = []
    offset = 0
    for kind in wanted.key:
        size = _SIZES[kind]
        first, last = key[offset : offset + size], end[offset : offset + size]
        if kind in swapped:
            first, last = first[::-1], last[::-1]
        if first == last:
            words.append(_WORDS[kind](first))
        elif kind in _ADDRESSES:
            words.append(_range(kind, int.from_bytes(first, "big"), int.from_bytes(last, "big")))
        else:
            words.append(f"{_WORDS[kind](first)}-{_WORDS[kind](last)}")
        offset += size + 3 & ~3
    return tuple(words)


def _range(kind: DataType, first: int, last: int) -> str:
    size = _SIZES[kind]
    start = _WORDS[kind](first.to_bytes(size, "big"))
    count = last - first + 1
    if count == 1:
        return start
    if not count & count - 1 and not first % count:
        return f"{start}/{size * 8 + 1 - count.bit_length()}"
    return f"{start}-{_WORDS[kind](last.to_bytes(size, 'big'))}"


def _ipv6(data: bytes) -> str:
    word = socket.inet_ntop(socket.AF_INET6, data)
    # The end of some addresses it writes as an IPv4 one.
    return str(IPv6Address(word)) if "." in word else word


def _class(data: bytes) -> str:
    major, minor = divmod(int.from_bytes(data, sys.byteorder), 1 << 16)
    return f"{_hex(major)}:{_hex(minor)}"


def _hex(number: int) -> str:
    return f"{number:x}" if number else ""


def _class_bytes(word: str) -> bytes:
    major, _, minor = word.partition(":")
    return (int(major or "0", 16) << 16 | int(minor or "0", 16)).to_bytes(4, sys.byteorder)


_HOST_ORDER: Final = (DataType.CLASS, DataType.MARK)
_ADDRESSES: Final = (DataType.IPV4, DataType.IPV6)
_FAMILIES: Final[dict[int, str]] = {socket.AF_INET: "ipv4", socket.AF_INET6: "ipv6"}
_FAMILY_NUMBERS: Final = {word: number for number, word in _FAMILIES.items()}
_PROTOCOLS: Final = {socket.IPPROTO_TCP: "tcp", socket.IPPROTO_UDP: "udp", socket.IPPROTO_SCTP: "sctp"}
_PROTOCOL_NUMBERS: Final = {word: number for number, word in _PROTOCOLS.items()}
_WORDS: Final[dict[DataType, Callable[[bytes], str]]] = {
    DataType.IPV4: socket.inet_ntoa,
    DataType.IPV6: _ipv6,
    DataType.ETHER: lambda data: data.hex(":"),
    DataType.CLASS: _class,
    DataType.MARK: lambda data: str(int.from_bytes(data, sys.byteorder)),
    DataType.PACKET_FAMILY: lambda data: _FAMILIES.get(data[0], str(data[0])),
    DataType.PROTOCOL: lambda data: _PROTOCOLS.get(data[0], str(data[0])),
    DataType.PORT: lambda data: str(int.from_bytes(data, "big")),
    DataType.LINK: lambda data: data.rstrip(b"\0").decode(),
    DataType.ND_TARGET: lambda data: f"0x{int.from_bytes(data, 'big'):x}",
}
_BYTES: Final[dict[DataType, Callable[[str], bytes]]] = {
    DataType.IPV4: socket.inet_aton,
    DataType.IPV6: lambda word: socket.inet_pton(socket.AF_INET6, word),
    DataType.ETHER: lambda word: bytes.fromhex(word.replace(":", "")),
    DataType.CLASS: _class_bytes,
    DataType.MARK: lambda word: int(word).to_bytes(4, sys.byteorder),
    DataType.PACKET_FAMILY: lambda word: bytes([_FAMILY_NUMBERS[word]]),
    DataType.PROTOCOL: lambda word: bytes([_PROTOCOL_NUMBERS[word] if word in _PROTOCOL_NUMBERS else int(word)]),
    DataType.PORT: lambda word: int(word).to_bytes(2, "big"),
    DataType.LINK: lambda word: word.encode().ljust(16, b"\0"),
    DataType.ND_TARGET: lambda word: int(word, 16).to_bytes(16, "big"),
}
"""The inverse of `_WORDS`."""


def cut_elements(piece: bytes) -> Iterator[tuple[bytes, bytes, bytes, int]]:
    """Key, end of the key (empty: none), value (empty: none) and flags of each element of a piece. Pure."""
    offset = 0
    while offset + 4 <= len(piece):
        cut = _Cut.like(piece, offset)
        end = offset + cut.step
        yield cut.element
        # Most elements differ from the one before in nothing but key and value.
        if cut.shape is not None and end < len(piece):
            rest = memoryview(piece)[end : end + (len(piece) - end) // cut.step * cut.step]
            for head, key, middle, value, tail in cut.shape.iter_unpack(rest):
                if head != cut.head or middle != cut.middle or tail != cut.tail:
                    break
                yield key, b"", value, 0
                end += cut.step
        offset = end


class _Cut:
    """How one element lies in the bytes. `shape` is None where it has more than a key and perhaps a value."""

    __slots__ = ("element", "head", "middle", "shape", "step", "tail")

    def __init__(self, element: tuple[bytes, bytes, bytes, int], step: int) -> None:
        self.element = element
        self.step = step
        self.shape: struct.Struct | None = None
        self.head = self.middle = self.tail = b""

    @classmethod
    def like(cls, piece: bytes, offset: int) -> "_Cut":
        length = int.from_bytes(piece[offset : offset + 2], sys.byteorder)
        step = length + 3 & ~3
        body = piece[offset + 4 : offset + length]
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
            cut.head, _, cut.middle, _, cut.tail = cut.shape.unpack_from(piece, offset)
        return cut


def _payload(data: bytes | None) -> bytes:
    """Of an attribute that holds another, NFTA_DATA_VALUE."""
    return b"" if data is None else dict(attributes(data)).get(1, b"")
