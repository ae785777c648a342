"""Rounds over several paths: equal work, and who is first changes."""

from dataclasses import dataclass
from typing import Any

from integration.bench.egress_server import PIECE
from integration.bench.path_rounds import take_rounds


@dataclass
class Path:
    """One that takes so many seconds for a piece, and notes what was asked of it; a `TrafficPath` otherwise."""

    name: str
    seconds: float
    asked: list[tuple[str, str, int]]

    def upload(self, pieces: int) -> float:
        self.asked.append((self.name, "upload", pieces))
        return self.seconds * pieces

    def download(self, pieces: int) -> float:
        self.asked.append((self.name, "download", pieces))
        return self.seconds * pieces / 2

    def round_trips(self, count: int) -> list[float]:
        self.asked.append((self.name, "trips", count))
        return [self.seconds] * count


def test_each_path_gets_what_the_slowest_takes_in_half_a_second() -> None:
    asked: list[tuple[str, str, int]] = []
    paths: list[Any] = [Path("quick", 0.001, asked), Path("slow", 0.01, asked)]
    measured = take_rounds(paths, rounds=2, datagrams=3)
    assert measured.megabytes == 50
    assert [(name, pieces) for name, what, pieces in asked if what == "download"][2:] == [
        ("quick", 50),
        ("slow", 50),
        ("slow", 50),
        ("quick", 50),
    ]
    assert {name: len(rounds) for name, rounds in measured.taken.items()} == {"quick": 2, "slow": 2}
    first = measured.taken["slow"][0]
    assert first.trips_ms == (10.0, 10.0, 10.0)
    assert round(first.upload_gbits, 9) == round(PIECE * 8 / 1e9 / 0.01, 9)
    assert round(first.download_gbits / first.upload_gbits, 9) == 2
