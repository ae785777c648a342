import json
from pathlib import Path

import pytest

from integration.apiserver.refusal_log import missing_rights

REFUSED = "pods is forbidden: User cannot list resource"


def write(folder: Path, *entries: tuple[int, str]) -> Path:
    log = folder / "program.log"
    lines = [json.dumps({"timestamp": f"2026-01-01T00:00:{second:02}Z", "event": said}) for second, said in entries]
    log.write_text("not of ours\n" + "\n".join(lines) + "\n")
    return log


def test_a_refusal_at_ordinary_times_is_a_missing_right(tmp_path: Path) -> None:
    [line] = missing_rights(write(tmp_path, (0, "starting"), (1, REFUSED)))
    assert REFUSED in line


@pytest.mark.parametrize(("second", "count"), [(30, 0), (31, 1)])
def test_soon_after_the_server_was_away_it_says_nothing(tmp_path: Path, second: int, count: int) -> None:
    log = write(tmp_path, (0, "interrupted"), (second, REFUSED))
    assert len(missing_rights(log)) == count


def test_a_refusal_does_not_excuse_the_next_one(tmp_path: Path) -> None:
    log = write(tmp_path, (0, "interrupted"), (29, f"interrupted: {REFUSED}"), (32, REFUSED))
    assert len(missing_rights(log)) == 1
