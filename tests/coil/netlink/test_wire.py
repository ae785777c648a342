from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.netlink.wire import (
    HEADER,
    attribute,
    attribute_text,
    attribute_u32,
    parse_attributes,
    parse_text,
    parse_u32,
    split_messages,
)

payloads = st.dictionaries(st.integers(1, 0x3FFF), st.binary(max_size=40), max_size=5)


@given(payloads)
def test_attributes_are_read_back(payloads: dict[int, bytes]) -> None:
    data = b"".join(attribute(kind, payload) for kind, payload in payloads.items())
    assert len(data) % 4 == 0
    assert parse_attributes(data, 0) == payloads


@given(
    st.integers(0, 2**32 - 1), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
)
def test_numbers_and_texts_are_read_back(number: int, text: str) -> None:
    attributes = parse_attributes(attribute_u32(1, number) + attribute_text(2, text), 0)
    assert parse_u32(attributes[1]) == number
    assert parse_text(attributes[2]) == text


def test_flags_in_an_attributes_type_are_not_part_of_it() -> None:
    assert parse_attributes(attribute(0x8000 | 7, b"nested"), 0) == {7: b"nested"}


@given(
    st.lists(st.tuples(st.integers(16, 200), st.integers(0, 0xFFFF), st.integers(0, 2**32 - 1), st.binary(max_size=40)))
)
def test_messages_of_a_datagram_are_read_back(messages: list[tuple[int, int, int, bytes]]) -> None:
    datagram = b""
    for kind, flags, sequence, body in messages:
        datagram += HEADER.pack(HEADER.size + len(body), kind, flags, sequence, 0) + body + bytes(-len(body) % 4)
    assert list(split_messages(datagram)) == messages


@given(st.binary(max_size=64))
def test_noise_is_refused_or_read_but_never_loops(data: bytes) -> None:
    with suppress(ValueError):
        parse_attributes(data, 0)
    with suppress(ValueError):
        list(split_messages(data))


@pytest.mark.parametrize("length", [0, 3, 9])
def test_a_length_beyond_the_data_or_below_the_header_is_refused(length: int) -> None:
    data = length.to_bytes(2, "little") + b"\x01\x00" + b"data"
    with pytest.raises(ValueError, match="truncated netlink attribute"):
        parse_attributes(data, 0)
