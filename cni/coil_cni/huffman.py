"""The Huffman code of HPACK: RFC 7541, section 5.2 and appendix B.

The code is canonical: within a length, codes count upwards in the order of the symbols, and the first code of a
length follows from the last one of the length before. So the symbols, sorted, are all of the table.
"""

_SYMBOLS = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: (b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\xe4\xe8\xe9"),
    23: (
        b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4"
        b"\xb6\xb7\xbc\xbf\xc5\xe7\xef"
    ),
    24: b"\x09\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    28: (
        b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b"
        b"\x1c\x1d\x1e\x1f\x7f\xdc\xf9"
    ),
    30: b"\x0a\x0d\x16",
}
"""Code length in bits → the symbols with codes of that length. EOS, 30 bits of ones, is left out."""

_SHORTEST, _LONGEST = 5, 30


def _ranges() -> list[tuple[int, bytes]]:
    """For each length the first code and the symbols that it and its successors stand for."""
    ranges: list[tuple[int, bytes]] = [(0, b"")] * _SHORTEST
    first = 0
    for length in range(_SHORTEST, _LONGEST + 1):
        symbols = _SYMBOLS.get(length, b"")
        ranges.append((first, symbols))
        first = (first + len(symbols)) << 1
    return ranges


_RANGES = _ranges()


def decode_huffman(data: bytes) -> bytes:
    """ValueError for EOS, for padding of a byte or more, and for padding that is not all ones."""
    decoded = bytearray()
    code = length = 0
    for byte in data:
        for position in (7, 6, 5, 4, 3, 2, 1, 0):
            code = code << 1 | (byte >> position & 1)
            length += 1
            if length > _LONGEST:
                raise ValueError("no such Huffman code")
            first, symbols = _RANGES[length]
            if code - first < len(symbols):
                decoded.append(symbols[code - first])
                code = length = 0
    if length > 7 or code != (1 << length) - 1:
        raise ValueError("wrong padding of a Huffman code")
    return bytes(decoded)
