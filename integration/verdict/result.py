"""The results of a session's tests, from the JUnit XML that pytest writes (`junit_family=xunit1`, which has files)."""

from collections.abc import Iterator
from dataclasses import dataclass
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


def load_results(path: Path) -> list[TestResult]:
    """One result for each test; none if there is no file, or half of one: then pytest has ended before its time.

    A test whose teardown failed as well has two entries in the file, and is one that failed.
    """
    try:
        root = ET.parse(path).getroot()  # noqa: S314 - pytest's own file
    except (OSError, ET.ParseError):
        return []
    merged: dict[str, TestResult] = {}
    for result in _read(root):
        former = merged.get(result.test)
        if former is None or former.outcome is not Outcome.FAILED:
            merged[result.test] = result
    return list(merged.values())


def _read(root: ET.Element) -> Iterator[TestResult]:
    for case in root.iter("testcase"):
        module, test = _name(case)
        problem = next((part for tag in ("failure", "error") if (part := case.find(tag)) is not None), None)
        if problem is not None:
            outcome, sentence = Outcome.FAILED, _first_sentence(problem)
        elif case.find("skipped") is not None:
            outcome, sentence = Outcome.SKIPPED, ""
        else:
            outcome, sentence = Outcome.PASSED, ""
        seconds = float(case.get("time", "0"))
        yield TestResult(test=test, module=module, outcome=outcome, seconds=seconds, sentence=sentence)


def _name(case: ET.Element) -> tuple[str, str]:
    name, place = case.get("name", ""), case.get("classname", "")
    module = case.get("file", "")
    if not place:  # not a test: a module that could not be collected
        return module, module
    dotted = module.removesuffix(".py").replace("/", ".")
    classes = [part for part in place.removeprefix(dotted).split(".") if part]
    return module, "::".join([module, *classes, name])


def _first_sentence(problem: ET.Element) -> str:
    lines = (line.strip() for line in (problem.get("message") or problem.text or "").splitlines())
    return next(filter(None, lines), "no message")[:_SENTENCE_LENGTH]
