import json
from pathlib import Path

import pytest

from integration.bench.figure import Better, Figure, Reading
from integration.bench.report import render_json, render_table, write_json

READINGS = (
    Reading(figure=Figure("a.seconds", "s"), value=0.31, runs=7),
    Reading(
        figure=Figure("b.per_second", "1/s", Better.HIGHER, "the peer"),
        value=54321.4,
        peer_value=27160.7,
        runs=3,
        note="warm",
    ),
    Reading(figure=Figure("c", "ms"), value=None, note="needs root"),
)


def test_table_aligns_numbers_right_and_lists_the_notes() -> None:
    assert render_table(READINGS).splitlines() == [
        "figure        value  unit  peer      peer's value  ratio  runs",
        "────────────  ─────  ────  ────────  ────────────  ─────  ────",
        "a.seconds      0.31  s                          —      —     7",
        "b.per_second  54321  1/s   the peer         27161      2     3",
        "c                 —  ms                         —      —     0",
        "",
        "b.per_second: warm",
        "c: needs root",
    ]


def test_table_without_notes_ends_with_its_last_row() -> None:
    assert render_table(READINGS[:1]).splitlines()[-1].startswith("a.seconds")


def test_json_is_one_array_in_order() -> None:
    documents = json.loads(render_json(READINGS))
    assert [document["name"] for document in documents] == ["a.seconds", "b.per_second", "c"]
    assert documents[2]["value"] is None


def test_write_makes_the_folder_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "build" / "bench.json"
    write_json(path, READINGS)
    write_json(path, READINGS[:1])
    assert [document["name"] for document in json.loads(path.read_text(encoding="utf-8"))] == ["a.seconds"]
    assert list(path.parent.iterdir()) == [path]


def test_a_failing_render_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    write_json(path, READINGS)
    before = path.read_bytes()
    broken = Reading(figure=Figure("d", object()), value=1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        write_json(path, [broken])
    assert path.read_bytes() == before
