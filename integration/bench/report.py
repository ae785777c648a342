"""The way out of the benchmarks: readings as a JSON file for programs, and as a table for people."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from integration.bench.figure import Reading

_HEADINGS = ("figure", "value", "unit", "peer", "peer's value", "ratio", "runs")
_NUMERIC = frozenset({1, 4, 5, 6})


def render_json(readings: Iterable[Reading]) -> str:
    """One array with one object per reading, in order."""
    return json.dumps([reading.document() for reading in readings], indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, readings: Iterable[Reading]) -> None:
    """Replace `path` by these readings, in one step: a reader sees the old file or the new one, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(render_json(readings), encoding="utf-8")
    draft.replace(path)


def render_table(readings: Sequence[Reading]) -> str:
    """Columns aligned for a terminal; below them, one line per note."""
    rows = [_HEADINGS, *(_cells(reading) for reading in readings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = ["  ".join(_pad(cell, i, widths[i]) for i, cell in enumerate(row)).rstrip() for row in rows]
    lines.insert(1, "  ".join("─" * width for width in widths))
    notes = [f"{reading.figure.name}: {reading.note}" for reading in readings if reading.note]
    return "\n".join([*lines, "", *notes]) if notes else "\n".join(lines)


def _cells(reading: Reading) -> tuple[str, ...]:
    figure = reading.figure
    return (
        figure.name,
        _number(reading.value),
        figure.unit,
        figure.peer or "",
        _number(reading.peer_value),
        _number(reading.ratio),
        str(reading.runs),
    )


def _pad(cell: str, column: int, width: int) -> str:
    return cell.rjust(width) if column in _NUMERIC else cell.ljust(width)


def _number(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
