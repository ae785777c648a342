"""Decodes a list while it arrives, object by object, so that its text is never in memory as a whole.

A list out of the API server's cache comes in one answer: 25 MB for 20 000 blocks, which would stand beside the objects
that are made of them. Pure; sits between the HTTP connection and a collection.

How the objects are told apart without reading JSON in Python: the server writes them without blanks, so where one ends
there is "},{", in fact "}," and the same few bytes with which the first one began. An object may hold that text, too;
but a beginning of an object is never a whole one, so what decodes is the object, and what does not goes on to the
next such place. A list that is written in another way is decoded at its end, as a whole.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

_OPENING = b'"items":['
_LIKENESS = 20
"""So many bytes of the first object are looked for at the beginning of the others."""

_FAILURES = 1000
"""In a row, after which the text is not JSON at all; no object has so many others like it inside."""


class ItemStream(Generic[T]):
    """Feed it pieces, then `close` it.

    `decode` makes an object of the text of one; it raises msgspec.ValidationError for one that is not as it should be,
    which goes through, and any other DecodeError for a part of one. Of an object that nobody wants it makes None.
    """

    def __init__(self, decode: Callable[[bytearray], T | None]) -> None:
        self.items: list[T] = []
        self._decode = decode
        self._envelope = b""  # what comes before the objects
        self._rest = bytearray()  # what has not been decoded; once there is an envelope, it begins with an object
        self._searched = 0  # so much of it holds no end of the object that it begins with
        self._separator = b""
        self._failures = 0

    def feed(self, piece: bytes) -> None:
        """Take the next piece and decode the objects that it completes."""
        self._rest += piece
        if not self._envelope and not self._open():
            return
        begin = 0
        while (place := self._rest.find(self._separator, self._searched)) >= 0:
            self._searched = place + 1
            if self._take(self._rest[begin : place + 1]):
                begin = self._searched = place + 2
        del self._rest[:begin]
        # A separator may be cut in two by the end of this piece.
        self._searched = max(self._searched - begin, len(self._rest) - len(self._separator) + 1)

    def close(self) -> bytearray:
        """Decode the last object; returns the text of the list without the objects in `items`."""
        # From the end: an object with a thousand lists of objects inside ends a thousand times, and then for good.
        end = len(self._rest)
        while self._envelope and (place := self._rest.rfind(b"}]", 0, end)) >= 0:
            end = place + 1
            if self._take(self._rest[:end]):
                return bytearray(self._envelope) + self._rest[end:]
        return bytearray(self._envelope) + self._rest

    def _open(self) -> bool:
        """Whether the objects have begun."""
        place = self._rest.find(_OPENING, self._searched)
        if place < 0:
            self._searched = max(0, len(self._rest) - len(_OPENING) + 1)
            return False
        self._searched = place
        begin = place + len(_OPENING)
        if len(self._rest) < begin + _LIKENESS:
            return False
        self._envelope = bytes(self._rest[:begin])
        del self._rest[:begin]
        self._separator = b"}," + self._rest[:_LIKENESS]
        self._searched = 0
        return True

    def _take(self, text: bytearray) -> bool:
        try:
            item = self._decode(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            self._failures += 1
            if self._failures > _FAILURES:
                raise
            return False
        if item is not None:
            self.items.append(item)
        self._failures = 0
        return True
