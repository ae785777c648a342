"""Tells at the end how many rights were judged: what did not run fails nothing, and is not to be overlooked either."""

from collections import Counter

import pytest

from integration.access.comparison import Judgement


class Summary:
    """Lines for the end of pytest's output; a test that did not run has the number of its rights."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, what: str, judgement: Judgement) -> None:
        counts = f"{len(judgement.used)} used, {len(judgement.unused)} not used, {len(judgement.not_run)} not run"
        self.lines.append(f"{what}: {counts}")
        tests = Counter(test for _, test in judgement.not_run)
        self.lines += [f"  not run: {test} ({number})" for test, number in tests.items()]


_SUMMARY = pytest.StashKey[Summary]()


@pytest.fixture(scope="session")
def summary(pytestconfig: pytest.Config) -> Summary:
    return pytestconfig.stash.setdefault(_SUMMARY, Summary())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if (summary := config.stash.get(_SUMMARY, None)) is not None:
        for line in summary.lines:
            terminalreporter.write_line(line)
