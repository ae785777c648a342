"""The results of a session's tests, from the JUnit XML that pytest writes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

REPOSITORY: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = REPOSITORY / "build" / "results"
"""A file for each run of a session."""

_SENTENCE_LENGTH = 300


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """`test` is pytest's node ID, `module` its file. `seconds` includes set-up and teardown."""

    __test__ = False  # no test of pytest's

    test: str
    module: str
    outcome: Outcome
    seconds: float
    sentence: str = ""
    """Of a failure."""


def results_path(run: str) -> Path:
    """Where the session's run of that name leaves its results."""
    return FOLDER / f"{run}.xml"


def load_results(path: Path, *, root: Path = REPOSITORY) -> list[TestResult]:
    """One result for each test of modules below `root`.

    An empty list if there is no file, or half of one: then pytest has ended before its time. A test whose teardown
    failed as well has two entries in the file, and is one that failed, for both reasons.
    """
    try:
        suites = ET.parse(path).getroot()  # noqa: S314 - pytest's own file
    except (OSError, ET.ParseError):
        return []
    merged: dict[str, TestResult] = {}
    for result in _read(suites, root):
        former = merged.get(result.test)
        if former is not None and former.outcome is Outcome.FAILED:
            both = "; ".join(filter(None, (former.sentence, result.sentence)))
            result = replace(result, outcome=Outcome.FAILED, sentence=both)  # noqa: PLW2901 - what is kept of the two
        merged[result.test] = result
    return list(merged.values())


def _read(suites: ET.Element, root: Path) -> Iterator[TestResult]:
    for case in suites.iter("testcase"):
        module, test = _name(case, root)
        problem = next((part for tag in ("failure", "error") if (part := case.find(tag)) is not None), None)
        if problem is not None:
            outcome, sentence = Outcome.FAILED, _first_sentence(problem)
        elif case.find("skipped") is not None:
            outcome, sentence = Outcome.SKIPPED, ""
        else:
            outcome, sentence = Outcome.PASSED, ""
        seconds = float(case.get("time", "0"))
        yield TestResult(test=test, module=module, outcome=outcome, seconds=seconds, sentence=sentence)


def _name(case: ET.Element, root: Path) -> tuple[str, str]:
    """Module and node ID. A module that could not be collected is a case without a class, and both are its path.

    The case's own `file` is where the test's code stands, which for a hypothesis state machine is in the library.
    """
    name, place = case.get("name", ""), case.get("classname", "")
    parts = (place or name).split(".")
    for length in range(len(parts), 0, -1):
        module = f"{'/'.join(parts[:length])}.py"
        if (root / module).is_file():
            return module, "::".join([module, *parts[length:], *([name] if place else [])])
    return place or name, f"{place}::{name}" if place else name


def _first_sentence(problem: ET.Element) -> str:
    """A line that ends with a colon says nothing without the next one."""
    said = ""
    for line in filter(None, map(str.strip, (problem.get("message") or problem.text or "").splitlines())):
        said = f"{said} {line}".lstrip()
        if not said.endswith(":"):
            break
    return said[:_SENTENCE_LENGTH] or "no message"
