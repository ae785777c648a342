"""Which figures of coild are promised, and that they are not taken outside of the room."""

import pytest

from integration.bench import coild_part
from integration.bench.coild_part import IMPORT_PART, PART
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


def test_the_import_is_counted_in_processor_time_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([(9000.0, 900.0, 700.0), *[(500.0 + number, 400.0 + number, 689.0) for number in range(15)]])
    monkeypatch.setattr(coild_part, "_take_import", lambda: next(runs))
    (reading,) = take_readings(IMPORT_PART, IMPORT_PART.figures)
    assert (reading.figure.name, reading.figure.unit) == ("coild.start.import_ms", "ms")
    assert (reading.value, reading.runs) == (407.0, 15)
    assert "689 modules; by the clock 507 ms; runs 400 … 414" in reading.note
