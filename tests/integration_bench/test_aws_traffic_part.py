"""From rounds over both paths to figures, and that none are measured outside of the room."""

import pytest

from integration.bench.aws_traffic_part import PART, RTT_P50, RTT_P99, THROUGHPUT, read_traffic
from integration.bench.part import take_readings
from integration.bench.path_rounds import PathRound, PathRounds

HUNDRED = tuple(float(number) for number in range(1, 101))


def rounds(*uploads: float, trips: tuple[float, ...]) -> list[PathRound]:
    return [PathRound(upload_gbits=each, download_gbits=2 * each, trips_ms=trips) for each in uploads]


def test_throughput_is_the_median_of_the_rounds_and_trips_are_of_all() -> None:
    ours = rounds(9.0, 1.0, 8.0, trips=HUNDRED)
    peer = rounds(10.0, 10.0, 10.0, trips=tuple(each / 2 for each in HUNDRED))
    readings = list(read_traffic(PathRounds(taken={"pods": ours, "nodes": peer}, megabytes=64)))
    assert [(reading.figure, reading.value, reading.peer_value, reading.runs) for reading in readings] == [
        (THROUGHPUT, 8.0, 10.0, 3),
        (RTT_P50, 50.0, 25.0, 3),
        (RTT_P99, 99.0, 49.5, 3),
    ]
    throughput, middle, _ = readings
    assert "64 MB a round" in throughput.note
    assert (
        "runs 1 … 9 against 10 … 10; neighbouring runs have the ratio 0.80; the other direction 0.80" in throughput.note
    )
    assert "300 a path in all" in middle.note
    assert "neighbouring runs have the ratio 2.00" in middle.note


def test_a_figure_that_was_not_taken_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COIL_BENCH_SCRATCH", raising=False)
    readings = take_readings(PART, PART.figures)
    assert [reading.figure.name for reading in readings] == ["aws.throughput", "aws.rtt_ms.p50", "aws.rtt_ms.p99"]
    assert all(reading.value is None and "RoomError" in reading.note for reading in readings)
