"""Elements out of the kernel's bytes. That these are the kernel's is integration/netns/test_table_reconciler.py's."""

import struct
import sys
from collections.abc import Sequence
from ipaddress import IPv6Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.family import Family
from coil.kernel.interval import span_word
from coil.kernel.nft_element import ElementKey, ElementValue, class_word
from coil.kernel.nft_table import DataType, NftSet
from coil.nft.element_codec import cut_elements, decode_elements, encode_elements, is_writable

Element = tuple[bytes, bytes, bytes, int]
ADDRESSES = NftSet(name="s", key=(DataType.IPV4,))
RANGES = NftSet(name="s", key=(DataType.IPV4,), intervals=True)
CLASSES = NftSet(name="m", key=(DataType.IPV6,), value=DataType.CLASS)
WAYS = NftSet(name="m", key=(DataType.CLASS, DataType.IPV4), value=DataType.MARK, intervals=True)
CHOICES = NftSet(name="m", key=(DataType.CLASS, DataType.IPV6), value=DataType.CLASS, intervals=True)
EIPS = NftSet(name="m", key=(DataType.CLASS,), value=DataType.IPV6)
NODES = NftSet(name="m", key=(DataType.ETHER,), value=DataType.MARK)
PORTS = NftSet(name="m", key=(DataType.IPV4, DataType.PROTOCOL, DataType.PORT), value=DataType.PORT)
PAIRS = NftSet(name="s", key=(DataType.IPV6, DataType.IPV6))
PEERS = NftSet(name="s", key=(DataType.MARK, DataType.ETHER))
LINKS = NftSet(name="s", key=(DataType.LINK,))
TARGETS = NftSet(name="s", key=(DataType.LINK, DataType.ND_TARGET))


def attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def piece(elements: Sequence[Element]) -> bytes:
    found = b""
    for key, end, value, flags in elements:
        body = attribute(1, attribute(1, key)) if key else b""
        body += attribute(10, attribute(1, end)) if end else b""
        body += attribute(2, attribute(1, value)) if value else b""
        body += attribute(3, struct.pack("!I", flags)) if flags else b""
        found += attribute(1, body)
    return found


def host(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder)


keys = st.sampled_from([4, 6, 16]).flatmap(lambda size: st.binary(min_size=size, max_size=size))
values = st.sampled_from([b"", b"1234", b"1" * 16])
elements_of_all_kinds = st.tuples(keys, st.one_of(st.just(b""), keys), values, st.integers(0, 3))


@given(elements=st.lists(st.one_of(elements_of_all_kinds, st.tuples(keys, st.just(b""), values, st.just(0)))))
def test_cut(elements: list[Element]) -> None:
    assert list(cut_elements(piece(elements))) == elements


@given(numbers=st.lists(st.integers(0, 2**32 - 1), unique=True), value=values)
def test_cut_of_what_is_alike(numbers: list[int], value: bytes) -> None:
    elements = [(host(number), b"", value, 0) for number in numbers]
    assert list(cut_elements(piece(elements))) == elements


@pytest.mark.parametrize(
    ("kind", "elements", "words"),
    [
        (ADDRESSES, [(bytes([10, 0, 0, 1]), b"", b"", 0), (b"", b"", b"", 2)], {"10.0.0.1": None, "*": None}),
        (CLASSES, [(bytes(15) + b"\1", b"", host(0x1001F), 0)], {"::1": "1:1f"}),
        (CLASSES, [(b"\x20\1" + bytes(10) + b"\1\2\3\4", b"", host(0x10000), 0)], {"2001::102:304": "1:"}),
        (CLASSES, [(bytes(10) + b"\xff\xff\1\2\3\4", b"", host(7), 0)], {str(IPv6Address("::ffff:102:304")): ":7"}),
        (NODES, [(b"\2\0\0\0\0\x1f", b"", host(0x26000100), 0)], {"02:00:00:00:00:1f": 0x26000100}),
        (
            PORTS,
            [
                (b"\12\0\0\1\x11\0\0\0\x1f\x90\0\0", b"", b"\0\x50", 0),
                (b"\12\0\0\1\x29\0\0\0\0\1\0\0", b"", b"\0\2", 0),
            ],
            {("10.0.0.1", "udp", "8080"): "80", ("10.0.0.1", "41", "1"): "2"},
        ),
        (PEERS, [(host(7) + b"\2\0\0\0\0\x1f\0\0", b"", b"", 0)], {("7", "02:00:00:00:00:1f"): None}),
        (LINKS, [(b"veth0" + bytes(11), b"", b"", 0)], {"veth0": None}),
        (
            TARGETS,
            [(b"veth0" + bytes(11) + b"\xfd" + bytes(14) + b"\1", b"", b"", 0)],
            {("veth0", "0xfd000000000000000000000000000001"): None},
        ),
        (
            WAYS,
            [
                (b"\0\1\0\2\12\0\0\0", b"\0\1\0\2\12\xff\xff\xff", host(7), 0),
                (b"\0\1\0\3\12\0\0\1", b"\0\1\0\3\12\0\0\1", host(8), 0),
                (b"\0\1\0\4\12\0\0\1", b"\0\1\0\5\12\0\0\3", host(9), 0),
            ],
            {("1:2", "10.0.0.0/8"): 7, ("1:3", "10.0.0.1"): 8, ("1:4-1:5", "10.0.0.1-10.0.0.3"): 9},
        ),
    ],
)
def test_words(kind: NftSet, elements: list[Element], words: dict[ElementKey, ElementValue]) -> None:
    # Class and mark as a machine of this order has them; beside ranges they are in network order.
    assert decode_elements(kind, [piece(elements)]) == words


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ([], []),
        ([(0, True)], []),
        ([(0, False)], ["0.0.0.0/0"]),
        ([(0, False), (1 << 24, True)], ["0.0.0.0/8"]),
        ([((1 << 32) - 1, False), (0, True)], ["255.255.255.255"]),
        ([(8, False), (8, True), (4, False)], ["0.0.0.8-255.255.255.255", "0.0.0.4/30"]),
        ([(4, False), (9, True), (9, False), (10, True)], ["0.0.0.9", "0.0.0.4-0.0.0.8"]),
    ],
)
def test_ranges(bounds: list[tuple[int, bool]], words: list[str]) -> None:
    elements = [(number.to_bytes(4, "big"), b"", b"", int(is_end)) for number, is_end in bounds]
    assert list(decode_elements(RANGES, [piece(elements)])) == words
    assert set(decode_elements(RANGES, [piece([element]) for element in elements[::-1]])) == set(words)


@pytest.mark.parametrize(
    "bounds", [[(8, False), (8, False), (10, True)], [(8, False), (10, True), (10, True), (8, False)]]
)
def test_what_is_twice_in_a_torn_dump_counts_once(bounds: list[tuple[int, bool]]) -> None:
    """The kernel shows the old generation's element and the new one's where the set changes during the dump."""
    elements = [(number.to_bytes(4, "big"), b"", b"", int(is_end)) for number, is_end in bounds]
    assert list(decode_elements(RANGES, [piece(elements)])) == ["0.0.0.8/31"]


@given(bounds=st.lists(st.tuples(st.integers(0, 9), st.booleans())))
def test_whatever_a_torn_dump_has_is_read(bounds: list[tuple[int, bool]]) -> None:
    elements = [(number.to_bytes(4, "big"), b"", b"", int(is_end)) for number, is_end in bounds]
    assert len(decode_elements(RANGES, [piece(elements)])) <= len(elements)


ipv4 = st.ip_addresses(v=4).map(str)
ipv6 = st.ip_addresses(v=6).map(str)
classes = st.integers(1, 0xFFFF * 0xFFFF).map(class_word)
marks = st.integers(0, 2**32 - 1)
protocols = st.sampled_from(["tcp", "udp", "sctp", "41"])
ports = st.integers(0, 65535).map(str)
ethers = st.binary(min_size=6, max_size=6).map(lambda data: data.hex(":"))


def ranges(version: int) -> st.SearchStrategy[str]:
    family = Family.IPV4 if version == 4 else Family.IPV6
    numbers = st.integers(0, 2 ** (32 if version == 4 else 128) - 1)
    return st.tuples(numbers, numbers).map(lambda ends: span_word((min(ends), max(ends)), family))


@pytest.mark.parametrize(
    ("wanted", "keys", "values"),
    [
        (ADDRESSES, ipv4, st.none()),
        (CLASSES, ipv6, classes),
        (NODES, ethers, marks),
        (WAYS, st.tuples(classes, ranges(4)), marks),
        (CHOICES, st.tuples(classes, ranges(6)), classes),
        (EIPS, classes, ipv6),
        (PORTS, st.tuples(ipv4, protocols, ports), ports),
        (PAIRS, st.tuples(ipv6, ipv6), st.none()),
        (PEERS, st.tuples(marks.map(str), ethers), st.none()),
    ],
)
@given(data=st.data())
def test_there_and_back(wanted: NftSet, keys: st.SearchStrategy[ElementKey], values: Any, data: st.DataObject) -> None:
    assert is_writable(wanted)
    elements = data.draw(st.dictionaries(keys, values, max_size=9))
    written = list(encode_elements(wanted, elements.items()))
    assert all(int.from_bytes(element[:2], sys.byteorder) == len(element) for element in written)
    # With the marks of nested attributes, which the kernel does not give back.
    plain = b"".join(element[:3] + bytes([element[3] & 0x7F]) + element[4:] for element in written)
    assert decode_elements(wanted, [plain]) == elements


@pytest.mark.parametrize("version", [4, 6])
@given(bounds=st.sets(st.integers(0, 40), max_size=12).map(sorted), at_the_end=st.booleans())
def test_ranges_there_and_back(version: int, bounds: list[int], at_the_end: bool) -> None:
    """Also those that are beside each other, and the one that nothing is behind."""
    kind = DataType.IPV4 if version == 4 else DataType.IPV6
    family = Family.IPV4 if version == 4 else Family.IPV6
    first = 2 ** (32 if version == 4 else 128) - 41 if at_the_end else 0
    spans = [(first + start, first + end) for start, end in zip(bounds[::2], bounds[1::2], strict=False)]
    wanted = NftSet(name="m", key=(kind,), value=DataType.CLASS, intervals=True)
    elements = {span_word(span, family): class_word(number + 1) for number, span in enumerate(spans)}
    written = list(encode_elements(wanted, elements.items()))
    assert all(int.from_bytes(element[:2], sys.byteorder) == len(element) for element in written)
    plain = b"".join(element[:3] + bytes([element[3] & 0x7F]) + element[4:] for element in written)
    assert decode_elements(wanted, [plain]) == elements


def test_what_is_left_to_the_library() -> None:
    assert not is_writable(NftSet(name="s", key=(DataType.PACKET_FAMILY,), timeouts=True))
