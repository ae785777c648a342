"""Cuts a byte stream into lines. Pure; sits between the HTTP connection and the decoder of watch events.

aiohttp's own line reader refuses lines longer than its buffer (4 MiB here), and an object may be longer.
"""


class LineTooLongError(ValueError):
    """A line exceeds the bound: the stream cannot be read on."""


class LineSplitter:
    """Feed it chunks, get whole lines. Each byte is searched once and copied at most twice.

    Invariant: what is held back contains no line break and is at most `limit` bytes long.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of a line whose end has not come yet."""
        return self._held

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their line breaks; empty lines are dropped.

        Raises LineTooLongError when a line, complete or not, exceeds the limit.
        """
        *complete, last = chunk.split(b"\n")
        if complete and self._rest:
            complete[0] = b"".join((*self._rest, complete[0]))
            self._rest, self._held = [], 0
        if last:
            self._rest.append(last)
            self._held += len(last)
        longest = max(map(len, complete), default=0)
        if max(longest, self._held) > self._limit:
            raise LineTooLongError(f"a line of more than {self._limit} bytes")
        return [line for line in complete if line]
