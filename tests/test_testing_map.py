"""docs/testing.md says which test covers what: each that it names exists, and each case has one that fakes nothing."""

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "testing.md"

_CODE = re.compile(r"`([^`]+)`")
_TEST = re.compile(r"(?P<file>[\w/]+/test_\w+\.py)(?:::(?P<name>\w+(?:::\w+)?))?")


def rows(heading: str = "") -> list[tuple[str, list[str]]]:
    """The cases of the tables below a heading, or of all, with the tests named for each."""
    section, found = "", []
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        is_row = line.startswith("| ") and len(cells) == 2 and cells[1] != "tests"
        if is_row and section.startswith(heading):
            found.append((cells[0], _CODE.findall(cells[1])))
    return found


def names_in(file: str) -> set[str]:
    """Test functions, classes and methods of a file, without importing it."""
    names = set()
    for node in ast.parse((REPOSITORY / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
            names |= {f"{node.name}::{method.name}" for method in methods}
    return names


@pytest.mark.parametrize("case", [case for case, _ in rows()])
def test_every_test_that_is_named_exists(case: str) -> None:
    tests = dict(rows())[case]
    assert tests
    for test in tests:
        named = _TEST.fullmatch(test)
        assert named is not None, f"{test} does not look like a test"
        assert (REPOSITORY / named["file"]).is_file(), test
        assert named["name"] is None or named["name"] in names_in(named["file"]), test


@pytest.mark.parametrize("heading", ["Cases", "Defects"])
def test_every_case_has_a_test_against_the_real_thing(heading: str) -> None:
    found = rows(heading)
    assert len(found) >= 7
    unreal = [case for case, tests in found if not any(test.startswith("integration/") for test in tests)]
    # The real API server calls the webhooks in `integration/apiserver/test_admission.py`; years pass only in memory.
    assert unreal in ([], ["a processor that spins in the rotation of certificates"])
