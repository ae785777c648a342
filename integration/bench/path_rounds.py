"""Several paths, measured in turns: in each round, over each path, the same bytes both ways and then datagrams."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from integration.bench.egress_path import TrafficPath
from integration.bench.egress_server import PIECE

_TRANSFER_SECONDS: Final = 0.5
_WARM_PIECES: Final = 8
_LONGEST_PIECES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRound:
    """What a path did in a round. `trips_ms` are of the single datagrams, there and back."""

    upload_gbits: float
    download_gbits: float
    trips_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRounds:
    """By the paths' names. `megabytes` went over each path in each direction and round."""

    taken: dict[str, list[PathRound]]
    megabytes: int


def take_rounds(paths: Collection[TrafficPath], *, rounds: int, datagrams: int) -> PathRounds:
    """Over each path as many bytes as the slowest took in a warm-up, scaled to seconds; who is first changes."""
    slowest = max(_warm_up(path, datagrams) for path in paths)
    pieces = max(1, min(round(_TRANSFER_SECONDS / slowest), _LONGEST_PIECES))
    gbits = pieces * PIECE * 8 / 1e9
    taken: dict[str, list[PathRound]] = {path.name: [] for path in paths}
    for number in range(rounds):
        for path in _turned(paths, number):
            trips = path.round_trips(datagrams)
            made = PathRound(
                upload_gbits=gbits / path.upload(pieces),
                download_gbits=gbits / path.download(pieces),
                trips_ms=tuple(1000 * trip for trip in trips),
            )
            taken[path.name].append(made)
    return PathRounds(taken=taken, megabytes=pieces * PIECE >> 20)


def _turned(paths: Collection[TrafficPath], number: int) -> list[TrafficPath]:
    every = list(paths)
    first = number % len(every)
    return every[first:] + every[:first]


def _warm_up(path: TrafficPath, datagrams: int) -> float:
    """Seconds of a piece, after a transfer that is not counted."""
    path.upload(_WARM_PIECES)
    path.round_trips(datagrams)
    return max(path.upload(_WARM_PIECES), path.download(_WARM_PIECES)) / _WARM_PIECES
