"""Which figures of coild are promised, and that they are not taken outside of the room."""

import pytest

from integration.bench.coild_part import PART
from integration.bench.part import take_readings


def test_a_figure_that_was_not_taken_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COIL_BENCH_SCRATCH", raising=False)
    readings = take_readings(PART, PART.figures)
    assert [reading.figure.name for reading in readings] == [
        "coild.rss_mb.pods110",
        "coild.restart_ready_s.pods110",
        "coild.stall_ms.par32",
        "coild.idle_cpu_percent",
    ]
    assert all(reading.value is None and "RoomError" in reading.note for reading in readings)
