"""What is made of runs of ADDs, and that none are taken outside of the room."""

import pytest

from integration.bench.add_rounds import AddRun, read_adds
from integration.bench.aws_node_part import ADD, PART
from integration.bench.part import take_readings


def runs(*medians: float, cpu: float = 1.0) -> list[AddRun]:
    return [AddRun(median_ms=each, cpu_ms=cpu, addresses=frozenset()) for each in medians]


def test_medians_of_both_sides_and_of_neighbours() -> None:
    reading = read_adds(ADD, runs(12.0, 40.0, 11.0, cpu=7.25), runs(10.0, 20.0, 10.0, cpu=5.5), about="pods")
    assert (reading.figure, reading.value, reading.peer_value, reading.runs) == (ADD, 12.0, 10.0, 3)
    assert "runs 11 … 40 against 10 … 20" in reading.note
    assert "has the median 1.200 (1.1 … 2)" in reading.note
    assert "7.2 against 5.5 ms" in reading.note


def test_runs_without_a_neighbour_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="zip"):
        read_adds(ADD, runs(1.0, 2.0), runs(1.0), about="pods")


def test_a_figure_that_was_not_taken_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COIL_BENCH_SCRATCH", raising=False)
    readings = take_readings(PART, PART.figures)
    assert [reading.figure.name for reading in readings] == ["aws.add_ms.warm", "aws.coild.rss_mb"]
    assert all(reading.value is None and "RoomError" in reading.note for reading in readings)
