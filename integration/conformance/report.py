"""What came of the tests: JUnit files to results, results to a table. Pure but for `read_results`."""

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

_NAME = re.compile(r"\[It\] (?P<text>.*)")
_LABEL = re.compile(r"\s*\[[^]]*\]\s*")


class Outcome(enum.StrEnum):
    """Of one spec; a spec that was not selected has none."""

    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Result:
    """One spec: its full name with its labels, how long it took, and why it failed, if it did."""

    name: str
    outcome: Outcome
    seconds: float
    message: str = ""

    @property
    def title(self) -> str:
        """The name without its labels."""
        return _LABEL.sub(" ", self.name).strip()


def parse_results(text: str) -> list[Result]:
    """Of a JUnit file as `e2e.test` writes it: the specs that ran. Raises ValueError for what is none.

    Whatever is neither passed nor skipped has failed: a spec may also time out, panic or be interrupted.
    """
    try:
        cases = list(ET.fromstring(text).iter("testcase"))  # noqa: S314 - written by a program that we have built
    except ET.ParseError as error:
        raise ValueError(f"not a JUnit file: {error}") from error
    found = []
    for case in cases:
        named = _NAME.fullmatch(case.get("name", ""))
        status = case.get("status", "")
        if named is None or status in ("skipped", "pending"):
            # What is done before and after all specs is told as a failure of the run, by its exit code.
            continue
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        outcome = Outcome.PASSED if status == "passed" else Outcome.FAILED
        message = "" if outcome is Outcome.PASSED or problem is None else (problem.text or "").strip()
        found.append(Result(named["text"], outcome, float(case.get("time", "0")), message or _reason(outcome, status)))
    return found


def _reason(outcome: Outcome, status: str) -> str:
    return "" if outcome is Outcome.PASSED else status


def read_results(folder: Path) -> list[Result]:
    """Of all JUnit files below the folder. Raises ValueError for a broken one."""
    return [result for path in sorted(folder.rglob("junit_*.xml")) for result in parse_results(path.read_text())]


def render_table(runs: Mapping[str, Iterable[Result]]) -> str:
    """Markdown: a row for each spec of any run, a column for each run, with the seconds that it took."""
    columns = [{result.title: result for result in results} for results in runs.values()]
    titles = sorted({title for column in columns for title in column})
    lines = [_row(["spec", *runs]), _row(["---"] * (len(columns) + 1))]
    lines += [_row([title, *(_cell(column.get(title)) for column in columns)]) for title in titles]
    counts = [sum(result.outcome is Outcome.PASSED for result in column.values()) for column in columns]
    totals = [f"{count} of {len(column)}" for count, column in zip(counts, columns, strict=True)]
    return "\n".join([*lines, _row(["**passed**", *totals])])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(result: Result | None) -> str:
    if result is None:
        return "not run"
    seconds = f"{result.seconds:.0f} s"
    return seconds if result.outcome is Outcome.PASSED else f"**failed** ({seconds})"
