"""Elements of sets and maps as the kernel has them, made the words of `coil.kernel.nft_element`. Pure.

A range of a set with a key of one type is two elements, where it begins and what is behind it; the last may lack the
second. With a key of several types it is one, with two keys, of which each part has room for whole words of 32 bits;
and the library turns numbers in the machine's order round there, in elements as in rules (test_kept_tables).
"""

import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv6Address
from typing import Final

from coil.kernel.nft_element import ElementKey, ElementValue
from coil.kernel.nft_table import DataType, NftSet
from coil.nft.netfilter_dump import cut_elements

_INTERVAL_END, _CATCH_ALL = 0x1, 0x2
_SIZES: Final = {DataType.IPV4: 4, DataType.IPV6: 16, DataType.ETHER: 6, DataType.CLASS: 4, DataType.MARK: 4}


def decode_elements(wanted: NftSet, pieces: Iterable[bytes]) -> dict[ElementKey, ElementValue]:
    """What is in a set of that type, whose elements do not expire."""
    elements = (element for piece in pieces for element in cut_elements(piece))
    decode_value = _value_decoder(wanted)
    if len(wanted.key) > 1:
        return {_parts(wanted.key, key, end or key): decode_value(value) for key, end, value, _ in elements}
    [kind] = wanted.key
    if wanted.intervals:
        return {_range(kind, first, last): decode_value(value) for first, last, value in _spans(kind, elements)}
    decode = _WORDS[kind]
    return {"*" if flags & _CATCH_ALL else decode(key): decode_value(value) for key, _, value, flags in elements}


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
    """First and last number, and value, of each range."""
    # What ends where something begins comes before it.
    bounds = sorted((int.from_bytes(key, "big"), not flags & _INTERVAL_END, value) for key, _, value, flags in elements)
    behind = 1 << _SIZES[kind] * 8
    for number, begins, value in reversed(bounds):
        if begins:
            yield number, behind - 1, value
        behind = number


def _parts(kinds: Iterable[DataType], key: bytes, end: bytes) -> tuple[str, ...]:
    words = []
    place = 0
    for kind in kinds:
        size = _SIZES[kind]
        first, last = key[place : place + size], end[place : place + size]
        if kind in _HOST_ORDER and sys.byteorder == "little":
            first, last = first[::-1], last[::-1]
        if first == last:
            words.append(_WORDS[kind](first))
        elif kind in _ADDRESSES:
            words.append(_range(kind, int.from_bytes(first, "big"), int.from_bytes(last, "big")))
        else:
            words.append(f"{_WORDS[kind](first)}-{_WORDS[kind](last)}")
        place += size + 3 & ~3
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


_HOST_ORDER: Final = (DataType.CLASS, DataType.MARK)
_ADDRESSES: Final = (DataType.IPV4, DataType.IPV6)
_WORDS: Final[dict[DataType, Callable[[bytes], str]]] = {
    DataType.IPV4: socket.inet_ntoa,
    DataType.IPV6: _ipv6,
    DataType.ETHER: lambda data: data.hex(":"),
    DataType.CLASS: _class,
    DataType.MARK: lambda data: str(int.from_bytes(data, sys.byteorder)),
}
