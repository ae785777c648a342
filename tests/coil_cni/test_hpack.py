"""The decoder against the examples of RFC 7541 appendix C and against another implementation's encoder."""

import pytest
from hpack import Encoder
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given
from hypothesis import strategies as st

from coil_cni.hpack import Decoder, Headers, decode_huffman, literal

FIRST = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
SECOND = [*FIRST, (b"cache-control", b"no-cache")]
THIRD = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":path", b"/index.html"),
    (b":authority", b"www.example.com"),
    (b"custom-key", b"custom-value"),
]
DATE, LATER = b"Mon, 21 Oct 2013 20:13:21 GMT", b"Mon, 21 Oct 2013 20:13:22 GMT"


def response(status: bytes, date: bytes, *more: tuple[bytes, bytes]) -> Headers:
    place = (b"location", b"https://www.example.com")
    return [(b":status", status), (b"cache-control", b"private"), (b"date", date), place, *more]


COOKIE = (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1")
RESPONSES = [
    response(b"302", DATE),
    response(b"307", DATE),
    response(b"200", LATER, (b"content-encoding", b"gzip"), COOKIE),
]

SEQUENCES = {
    "C.3 requests, plain": (
        [
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ],
        [FIRST, SECOND, THIRD],
    ),
    "C.4 requests, Huffman": (
        [
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ],
        [FIRST, SECOND, THIRD],
    ),
}

# C.5 and C.6 are for a table of 256 octets: so they start here with the size update that announces it.
SMALL_TABLE = "3fe101"
RESPONSE_SEQUENCES = {
    "C.5 responses, plain": [
        "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
        "6e1768747470733a2f2f7777772e6578616d706c652e636f6d",
        "4803333037c1c0bf",
        "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153"
        "444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31",
    ],
    "C.6 responses, Huffman": [
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
        "4883640effc1c0bf",
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960"
        "d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
    ],
}


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", (b"custom-key", b"custom-header")),
        ("040c2f73616d706c652f70617468", (b":path", b"/sample/path")),
        ("100870617373776f726406736563726574", (b"password", b"secret")),
        ("82", (b":method", b"GET")),
    ],
    ids=["C.2.1", "C.2.2", "C.2.3", "C.2.4"],
)
def test_single_fields_of_the_rfc(block: str, field: tuple[bytes, bytes]) -> None:
    assert Decoder().decode(bytes.fromhex(block)) == [field]


@pytest.mark.parametrize("name", SEQUENCES)
def test_request_sequences_of_the_rfc(name: str) -> None:
    blocks, expected = SEQUENCES[name]
    decoder = Decoder()
    assert [decoder.decode(bytes.fromhex(block)) for block in blocks] == expected


@pytest.mark.parametrize("name", RESPONSE_SEQUENCES)
def test_response_sequences_of_the_rfc_with_eviction(name: str) -> None:
    first, *rest = RESPONSE_SEQUENCES[name]
    decoder = Decoder()
    decoded = [decoder.decode(bytes.fromhex(block)) for block in [SMALL_TABLE + first, *rest]]
    assert decoded == RESPONSES
    # The third response has thrown out all but its own entries: 62 to 64 are there, 65 is not.
    assert decoder.decode(bytes.fromhex("bec0"))[0] == COOKIE
    with pytest.raises(ValueError, match="beyond the tables"):
        decoder.decode(bytes.fromhex("c1"))


fields = st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=300)), max_size=12)


@given(st.lists(fields, min_size=1, max_size=5), st.booleans())
def test_decodes_what_another_encoder_writes(blocks: list[Headers], huffman: bool) -> None:
    encoder, decoder = Encoder(), Decoder()
    for headers in blocks:
        assert decoder.decode(encoder.encode(headers, huffman=huffman)) == headers


@given(st.binary(max_size=200))
def test_a_malformed_block_is_a_value_error(block: bytes) -> None:
    try:
        headers = Decoder().decode(block)
    except ValueError:
        return
    assert isinstance(headers, list)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("80", "beyond the tables"),
        ("be", "beyond the tables"),
        ("3fe21f", "larger than allowed"),
        ("8220", "size update after"),
        ("ffffffffffff", "integer without end"),
        ("7f", "integer without end"),
        ("40", "ends in a field"),
        ("400a6375", "ends in a string"),
        ("00816100", "wrong padding"),
    ],
)
def test_malformed_blocks(block: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decoder().decode(bytes.fromhex(block))


def test_a_small_block_may_not_stand_for_megabytes() -> None:
    value = b"\x40\x01a\x7f\x80\x1e" + b"x" * (127 + 128 * 30)
    with pytest.raises(ValueError, match="64 KiB"):
        Decoder().decode(value + b"\xbe" * 100)


def test_literal_is_what_another_decoder_reads() -> None:
    assert Decoder().decode(literal(b"te", b"trailers")) == [(b"te", b"trailers")]


def test_huffman_table_is_the_one_of_appendix_b() -> None:
    encoder = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
    for symbol in range(256):
        assert decode_huffman(encoder.encode(bytes((symbol,)) * 9)) == bytes((symbol,)) * 9


@given(st.binary(max_size=60))
def test_huffman_of_any_octets(data: bytes) -> None:
    try:
        decoded = decode_huffman(data)
    except ValueError:
        return
    assert HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(decoded) == data


@pytest.mark.parametrize(
    "data",
    [b"\xff" * 4, b"\x18", b"\x1f\xff"],
    ids=["EOS", "padding of zeros", "padding of a whole octet"],
)
def test_huffman_padding(data: bytes) -> None:
    with pytest.raises(ValueError, match="Huffman"):
        decode_huffman(data)
