"""What was measured of egress NAT, as it comes out of the kernel that has it: typed, and as JSON in a file. Pure.

A section is there when it was measured, so a run that ends early tells what it has.
"""

from typing import Final

import msgspec

RESULT: Final = "result.json"
PATHS: Final = "paths"
CROWD: Final = "crowd"
ADDS: Final = "adds"


class PathSamples(msgspec.Struct, frozen=True, kw_only=True):
    """One path, a value of each round."""

    upload_gbits: tuple[float, ...]
    download_gbits: tuple[float, ...]
    rtt_ms: tuple[float, ...]
    """Medians of the round's datagrams."""


class TrafficPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Measured in alternation. `megabytes` went over each path in each direction and round."""

    tunnel: PathSamples
    plain: PathSamples
    """By the same router with the same masquerade, without a tunnel."""
    direct: PathSamples
    """As a pod that has no Egress."""
    megabytes: int
    datagrams: int


class Joins(msgspec.Struct, frozen=True, kw_only=True):
    """How long it took each of several pods to become the n-th client."""

    count: int
    ms: tuple[float, ...]


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    """Clients `first` to `last` were added, one call after the other; what the agent took for them."""

    first: int
    last: int
    cpu_ms: float
    seconds: float

    @property
    def cpu_ms_per_client(self) -> float:
        return self.cpu_ms / (self.last - self.first + 1)


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """The agent with many clients: megabytes, and its time while nothing happened."""

    joins: tuple[Joins, ...]
    fills: tuple[Fill, ...]
    rss_mb: float
    peak_mb: float
    pss_mb: float
    empty_rss_mb: float
    idle_seconds: float
    idle_cpu_ms: float
    tunnels: int
    routes: int
    """As iproute2 counts them at the end."""

    def joined(self, count: int) -> tuple[float, ...]:
        """Milliseconds of those who became the n-th client. Raises LookupError."""
        for joins in self.joins:
            if joins.count == count:
                return joins.ms
        raise LookupError(f"nobody became client number {count}")


class Adds(msgspec.Struct, frozen=True, kw_only=True):
    """ADDs one at a time, taken in turns by pods that name an Egress and pods that name none: a median of each run."""

    client_ms: tuple[float, ...]
    plain_ms: tuple[float, ...]
    count: int
    """ADDs in a run."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`place` is the kernel and the processor that it ran on."""

    place: str
    paths: TrafficPaths | None = None
    crowd: Crowd | None = None
    adds: Adds | None = None


def encode(result: Result) -> bytes:
    """To be read by `decode`."""
    return msgspec.json.encode(result)


def decode(text: bytes) -> Result:
    """Raises msgspec.ValidationError or msgspec.DecodeError."""
    return msgspec.json.decode(text, type=Result)
