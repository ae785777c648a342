"""Header compression of HTTP/2, RFC 7541: a decoder of one connection, and literals for the one request.

Any malformed block is a ValueError, after which the decoder, like the connection, is of no more use.

The Huffman code (section 5.2 and appendix B), which most peers use, is canonical: within a length, codes count upwards
in the order of the symbols, and the first code of a length follows from the last one of the length before. So the
symbols, sorted, are all of the table.
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


_STATIC = (
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
)
_TABLE_SIZE = 4096  # SETTINGS_HEADER_TABLE_SIZE that holds as long as we send no other
_ENTRY_OVERHEAD = 32  # section 4.1
_LIST_MAX = 65536  # octets of all names and values: a block of one-byte references can stand for megabytes

Headers = list[tuple[bytes, bytes]]


def literal(name: bytes, value: bytes) -> bytes:
    """A field that enters no table, for parts of up to 126 octets (section 6.2.2)."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


class Decoder:
    """Decodes the header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._dynamic: Headers = []  # newest first
        self._size = 0
        self._limit = _TABLE_SIZE

    def decode(self, block: bytes) -> Headers:
        headers: Headers = []
        total = position = 0
        while position < len(block):
            first = block[position]
            if first & 0x80:  # 6.1, indexed
                index, position = _integer(block, position, 7)
                field = self._entry(index)
            elif first & 0x60 == 0x20:  # 6.3, size update
                if headers:
                    raise ValueError("a table size update after a field")
                limit, position = _integer(block, position, 5)
                if limit > _TABLE_SIZE:
                    raise ValueError("a header table larger than allowed")
                self._limit = limit
                self._evict()
                continue
            else:  # 6.2, literal; only the kind with 0x40 enters the table
                index, position = _integer(block, position, 6 if first & 0x40 else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, position = _string(block, position)
                value, position = _string(block, position)
                field = (name, value)
                if first & 0x40:
                    self._insert(field)
            total += len(field[0]) + len(field[1])
            if total > _LIST_MAX:
                raise ValueError("header fields of more than 64 KiB")
            headers.append(field)
        return headers

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if 1 <= index <= len(_STATIC):
            return _STATIC[index - 1]
        if 1 <= index - len(_STATIC) <= len(self._dynamic):
            return self._dynamic[index - len(_STATIC) - 1]
        raise ValueError(f"header index {index} is beyond the tables")

    def _insert(self, field: tuple[bytes, bytes]) -> None:
        self._dynamic.insert(0, field)
        self._size += _size(field)
        self._evict()

    def _evict(self) -> None:
        while self._size > self._limit:
            self._size -= _size(self._dynamic.pop())


def _size(field: tuple[bytes, bytes]) -> int:
    return len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD


def _integer(block: bytes, position: int, prefix: int) -> tuple[int, int]:
    """Section 5.1; five octets are more than any index or length here needs."""
    full = (1 << prefix) - 1
    value = block[position] & full
    position += 1
    if value < full:
        return value, position
    for shift in (0, 7, 14, 21):
        if position >= len(block):
            break
        octet = block[position]
        position += 1
        value += (octet & 0x7F) << shift
        if octet < 0x80:
            return value, position
    raise ValueError("an integer without end")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    if position >= len(block):
        raise ValueError("a header block that ends in a field")
    huffman = block[position] & 0x80
    length, position = _integer(block, position, 7)
    end = position + length
    if end > len(block):
        raise ValueError("a header block that ends in a string")
    octets = block[position:end]
    if not huffman:
        return octets, end
    return decode_huffman(octets), end
