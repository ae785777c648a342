"""Header compression of HTTP/2, RFC 7541: a decoder of one connection, and literals for the one request.

Any malformed block is a ValueError, after which the decoder, like the connection, is of no more use.
"""

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
    # Most peers use it, but not all of them: C-core for one does not.
    from coil_cni.huffman import decode_huffman

    return decode_huffman(octets), end
