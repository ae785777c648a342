"""nf_tables over netlink, without libnftables: transactions of elements, dumps of what tables hold, counters.

The library reads everything that the namespace's tables hold before most commands (a second for 100 000 elements), its
users take turns, and it restarts a listing whenever anything in the tables changes meanwhile: where the timeouts of
EIPs are refreshed five times a second, a listing that takes longer never ends. The conversations here take some tens of
microseconds, in the namespace of the calling thread, whatever else goes on. A dump is not restarted: a short one is
read again if something has changed meanwhile, and for a long one that is the caller's task.

Source: linux/netfilter/nfnetlink.h, nf_tables.h; all numbers in attributes are in network order.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from coil.kernel.nft_table import TableFamily

_NETLINK_NETFILTER: Final = 12
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_TABLES: Final = 10
_DELETE_CHAIN, _DELETE_RULE = 5, 8
_GET_TABLE, _NEW_ELEMENTS, _DELETE_ELEMENTS, _NEW_OBJECT, _GET_OBJECT = 1, 12, 14, 18, 19
_ERROR, _DONE = 2, 3
_REQUEST, _ACK, _DUMP, _CREATE = 0x1, 0x4, 0x300, 0x400
_INTERRUPTED: Final = 0x10
"""Something has changed between two parts of an answer."""
_NESTED: Final = 0x8000
_COUNTER: Final = 1

_HEADER: Final = struct.Struct("=IHHII")
_GENERIC: Final = struct.Struct("!BBH")
_ATTRIBUTE: Final = struct.Struct("=HH")
_ERRNO: Final = struct.Struct("=i")
_FAMILIES: Final = {
    TableFamily.INET: 1,
    TableFamily.IP: 2,
    TableFamily.ARP: 3,
    TableFamily.BRIDGE: 7,
    TableFamily.IP6: 10,
}
_ROOM: Final = 1 << 18
_MOST: Final = 60_000
"""Bytes of elements in one message; an attribute's length has 16 bits."""
_SOL_NETLINK, _NETLINK_CAP_ACK = 270, 10  # linux/netlink.h
_SO_SNDBUFFORCE: Final = 32
_SECONDS: Final = 5.0
"""The kernel answers before the call that asks returns; no answer within this is an error."""
_GET_GENERATION: Final = 16
_ATTEMPTS: Final = 20
"""How often a short dump is read until nothing has changed meanwhile."""


class NftError(Exception):
    """libnftables or the kernel refused. Nothing of what was attempted has taken place: it would have been one
    transaction.

    `doing` is what was attempted, `reason` the library's or the kernel's own words, `errno` the kernel's number, or 0.
    """

    def __init__(self, *, doing: str, reason: str, errno: int = 0) -> None:
        super().__init__(f"{doing}: {reason}")
        self.doing = doing
        self.reason = reason
        self.errno = errno


class Dump(IntEnum):
    """The requests; what answers has the number before."""

    CHAINS = 4
    RULES = 7
    SETS = 10
    ELEMENTS = 13
    OBJECTS = 19


def dump_objects(
    kind: Dump, family: TableFamily, table: str, *, doing: str, selection: bytes = b""
) -> list[dict[int, bytes]]:
    """The attributes of all chains, rules, sets or named objects of the table, in the kernel's order; all at one time.
    `selection` (attributes) asks for fewer, where the kernel knows how. Raises NftError, also where there is no such
    table.
    """
    for _ in range(_ATTEMPTS):
        found: list[dict[int, bytes]] = []
        whole = True
        for answer, body, consistent in converse(kind, family, text(1, table) + selection, doing=doing):
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


def has_nftables() -> bool:
    """Whether the kernel has nf_tables, or could load it. Raises NftError where that cannot be told."""
    try:
        read_generation(doing="look for nf_tables")
    except NftError as error:
        # What nfnetlink_rcv_msg() answers about a subsystem that nobody has registered; socket(2).
        if error.errno in {errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT}:
            return False
        raise
    return True


@dataclass(frozen=True, slots=True)
class Message:
    """One message to nf_tables about a table of the family; `kind` is one of the NFT_MSG numbers."""

    kind: int
    family: TableFamily
    body: bytes
    flags: int = 0


def flush_set(family: TableFamily, table: str, name: str) -> Message:
    """All elements of a set go."""
    return Message(_DELETE_ELEMENTS, family, text(1, table) + text(2, name))


def add_expiring(family: TableFamily, table: str, name: str, *, keys: Sequence[bytes], milliseconds: int) -> Message:
    """Elements come, for so long; those that are there already would keep their time."""
    elements = b"".join(
        _nested(1, _nested(1, _attribute(1, key)) + _attribute(4, struct.pack("!Q", milliseconds))) for key in keys
    )
    return Message(_NEW_ELEMENTS, family, text(1, table) + text(2, name) + _nested(3, elements), flags=_CREATE)


def add_elements(family: TableFamily, table: str, name: str, elements: Iterable[bytes]) -> Iterator[Message]:
    """Elements come, each an attribute NFTA_LIST_ELEM; it is an error if one is there with another value."""
    return _element_messages(_NEW_ELEMENTS, text(1, table) + text(2, name), family, elements)


def delete_elements(family: TableFamily, table: str, name: str, elements: Iterable[bytes]) -> Iterator[Message]:
    """Elements go; it is an error if one is not there."""
    return _element_messages(_DELETE_ELEMENTS, text(1, table) + text(2, name), family, elements)


def _element_messages(kind: int, place: bytes, family: TableFamily, elements: Iterable[bytes]) -> Iterator[Message]:
    flags = _CREATE if kind == _NEW_ELEMENTS else 0
    waiting: list[bytes] = []
    size = 0
    for element in elements:
        if size + len(element) > _MOST:
            yield Message(kind, family, place + _nested(3, b"".join(waiting)), flags)
            waiting.clear()
            size = 0
        waiting.append(element)
        size += len(element)
    if waiting:
        yield Message(kind, family, place + _nested(3, b"".join(waiting)), flags)


def delete_rule(family: TableFamily, table: str, chain: str, handle: bytes) -> Message:
    """Delete the rule with this handle, as the kernel has told it; no other rule ever has it."""
    return Message(_DELETE_RULE, family, text(1, table) + text(2, chain) + _attribute(3, handle))


def flush_chain(family: TableFamily, table: str, chain: str) -> Message:
    """Delete all rules of a chain."""
    return Message(_DELETE_RULE, family, text(1, table) + text(2, chain))


def delete_chain(family: TableFamily, table: str, chain: str) -> Message:
    """Delete a chain; fails if it is not empty, or if a rule jumps to it."""
    return Message(_DELETE_CHAIN, family, text(1, table) + text(3, chain))


class NetfilterSocket:
    """A socket for many transactions, in the namespace of the thread that makes the first; for one thread at a time.

    Kept, since to close one takes the kernel until what the last transaction has removed is gone, 10 ms and more.
    """

    def __init__(self) -> None:
        self._connection: socket.socket | None = None

    def close(self) -> None:
        """Idempotent; another transaction opens it again."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def transact(self, messages: Sequence[Message], *, doing: str) -> None:
        """Carry them out as one transaction. Raises NftError, and then nothing has changed."""
        if self._connection is None:
            self._connection = _connect(doing)
        try:
            _transact(self._connection, messages, doing)
        except BaseException:
            # Answers to what has failed may still be in it.
            self.close()
            raise


def _transact(connection: socket.socket, messages: Sequence[Message], doing: str) -> None:
    frame = _GENERIC.pack(0, 0, _TABLES)
    parts = [_message(_BATCH_BEGIN, _REQUEST, 0, frame)]
    parts += (_render(message, number, _ACK) for number, message in enumerate(messages, 1))
    parts.append(_message(_BATCH_END, _REQUEST, len(messages) + 1, frame))
    missing = set(range(1, len(messages) + 1))
    batch = b"".join(parts)
    # A transaction is one message to the kernel, and room for it is counted twice.
    try:
        connection.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, max(2 * len(batch), _ROOM))
        connection.send(batch)
    except OSError as error:
        raise NftError(doing=doing, reason=f"the kernel does not take it ({error.strerror})") from error
    while missing:
        for kind, number, body in _receive(connection, doing):
            if kind == _ERROR:
                _check(body, doing)
                missing.discard(number)


def has_table(family: TableFamily, table: str, *, doing: str) -> bool:
    """Whether there is such a table. Raises NftError."""
    with _connect(doing) as connection:
        connection.send(_render(Message(_GET_TABLE, family, text(1, table)), 1, _ACK))
        while True:
            for kind, _, body in _receive(connection, doing):
                if kind == _ERROR and _ERRNO.unpack_from(body)[0] == -errno.ENOENT:
                    return False
                if kind == _ERROR:
                    _check(body, doing)
                    return True


def dump_counters(table: str, *, doing: str) -> Iterator[tuple[str, int, int]]:
    """Name, packets and bytes of each counter of the inet table. Raises NftError, also where there is no such table."""
    if not has_table(TableFamily.INET, table, doing=doing):
        raise NftError(doing=doing, reason="there is no such table")
    with _connect(doing) as connection:
        wanted = text(1, table) + _attribute(3, struct.pack("!I", _COUNTER))
        connection.send(_render(Message(_GET_OBJECT, TableFamily.INET, wanted), 1, _DUMP))
        while True:
            for kind, _, body in _receive(connection, doing):
                if kind in {_ERROR, _DONE}:
                    _check(body, doing)
                    return
                if kind == _TABLES << 8 | _NEW_OBJECT:
                    found = dict(attributes(body[_GENERIC.size :]))
                    data = dict(attributes(found[4]))
                    name = found[2].rstrip(b"\0").decode()
                    yield name, int.from_bytes(data[2], "big"), int.from_bytes(data[1], "big")


def converse(
    kind: int, family: TableFamily | None, body: bytes, *, doing: str, dump: bool = True
) -> Iterator[tuple[int, bytes, bool]]:
    """Ask for one thing, or (`dump`) for all there are: the NFT_MSG number and the attributes of each message of the
    answer, and whether nothing has changed since it began. Raises NftError.
    """
    with _connect(doing) as connection:
        frame = _GENERIC.pack(0 if family is None else _FAMILIES[family], 0, 0)
        connection.send(_message(_TABLES << 8 | kind, _REQUEST | (_DUMP if dump else _ACK), 1, frame + body))
        while True:
            for answer, flags, content in _receive_flagged(connection, doing):
                if answer in {_ERROR, _DONE}:
                    _check(content, doing)
                    if flags & _INTERRUPTED:
                        yield answer, b"", False
                    return
                yield answer & 0xFF, content[_GENERIC.size :], not flags & _INTERRUPTED


def _connect(doing: str) -> socket.socket:
    try:
        connection = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER)
    except OSError as error:
        reason = f"this kernel has no netfilter ({error.strerror})"
        raise NftError(doing=doing, reason=reason, errno=error.errno or 0) from error
    connection.settimeout(_SECONDS)
    # An answer does not repeat the question.
    connection.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
    return connection


def _receive(connection: socket.socket, doing: str) -> Iterator[tuple[int, int, bytes]]:
    """Type, number and body of each message that has come."""
    return ((kind, number, body) for kind, _, number, body in _messages(connection, doing))


def _receive_flagged(connection: socket.socket, doing: str) -> Iterator[tuple[int, int, bytes]]:
    """Type, flags and body of each message that has come."""
    return ((kind, flags, body) for kind, flags, _, body in _messages(connection, doing))


def _messages(connection: socket.socket, doing: str) -> Iterator[tuple[int, int, int, bytes]]:
    try:
        data = connection.recv(_ROOM)
    except OSError as error:
        raise NftError(doing=doing, reason=f"no answer from the kernel ({error})") from error
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, number, _ = _HEADER.unpack_from(data, offset)
        yield kind, flags, number, data[offset + _HEADER.size : offset + length]
        offset += length + 3 & ~3


def _check(body: bytes, doing: str) -> None:
    [number] = _ERRNO.unpack_from(body)
    if number:
        raise NftError(doing=doing, reason=os.strerror(-number), errno=-number)


def _render(message: Message, number: int, flags: int) -> bytes:
    body = _GENERIC.pack(_FAMILIES[message.family], 0, 0) + message.body
    return _message(_TABLES << 8 | message.kind, _REQUEST | message.flags | flags, number, body)


def _message(kind: int, flags: int, number: int, body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, number, 0) + body


def _attribute(kind: int, payload: bytes) -> bytes:
    padding = -len(payload) % 4
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(payload), kind) + payload + b"\0" * padding


def text(kind: int, word: str) -> bytes:
    """An attribute that holds a name."""
    return _attribute(kind, word.encode() + b"\0")


def _nested(kind: int, payload: bytes) -> bytes:
    return _attribute(kind | _NESTED, payload)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and content of each attribute."""
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        yield kind & ~_NESTED, data[offset + _ATTRIBUTE.size : offset + length]
        offset += length + 3 & ~3
