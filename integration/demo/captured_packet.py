"""Packets of a conversation as they were on the links of a node, and as they should have been. No input, no output."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedPacket:
    """On that link. `about` is what it is part of; `port` and `source_port` may be anybody's choice."""

    link: str
    source: str
    destination: str
    about: str
    source_port: int = 0
    port: int = 0

    @property
    def row(self) -> tuple[str, str, str, str]:
        return self.link, f"{self.source}:{self.source_port}", f"{self.destination}:{self.port}", self.about

    @property
    def way(self) -> str:
        """Without what may be anything."""
        return f"{self.source} to {self.destination} by {self.link}"


def find_wrong_ways(captured: Sequence[CapturedPacket], expected: Sequence[CapturedPacket]) -> list[str]:
    """A sentence for each packet that was seen and should not have been, or the other way round."""
    seen, wanted = ({each.way for each in packets} for packets in (captured, expected))
    return [
        *(f"a packet went from {way}, which should not have" for way in sorted(seen - wanted)),
        *(f"no packet went from {way}" for way in sorted(wanted - seen)),
    ]
