"""What follows from the results of all sessions: passed or failed, with what has to be known of it. Pure."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from integration.verdict.result import Outcome, TestResult

SLOWEST: Final = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRun:
    """One run of a session, of all its tests or, when it is repeated, of one module.

    `leak` is what it said of packets that have left the machine.
    """

    session: str
    code: int
    seconds: float
    results: Sequence[TestResult]
    leak: str = ""

    @property
    def failed(self) -> list[TestResult]:
        return [result for result in self.results if result.outcome is Outcome.FAILED]

    @property
    def failed_modules(self) -> list[str]:
        """In their order, each once."""
        return list(dict.fromkeys(result.module for result in self.failed))

    @property
    def unexplained(self) -> bool:
        """It failed, and by no test: a check without tests, or something that no test was told of."""
        return self.code != 0 and not self.failed

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome is outcome for result in self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A module that had failed in a session, run once more, alone."""

    module: str
    run: SessionRun

    @property
    def passed(self) -> bool:
        return self.run.code == 0 and self.run.count(Outcome.PASSED) > 0


def select_reruns(
    runs: Sequence[SessionRun], *, limit: int, final: Collection[str] = frozenset()
) -> list[tuple[str, str]]:
    """Session and module of what is to be run once more: all that failed, without the modules whose failure is final.

    Nothing if that is more than `limit`, or if packets have left the machine, whichever test has been told of it.
    """
    wanted = [(run.session, module) for run in runs for module in run.failed_modules if module not in final]
    leaked = any(run.leak for run in runs)
    return [] if leaked or len(wanted) > limit else wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`command` is the layer's; `clean` says whether the checkout had no uncommitted changes."""

    command: str
    commit: str
    clean: bool
    seconds: float
    runs: Sequence[SessionRun]
    reruns: Sequence[Rerun] = ()

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def flaky(self) -> list[tuple[str, TestResult]]:
        """Session, and what failed in it although its module passed when it was run alone."""
        forgiven = self._forgiven()
        return [
            (run.session, test) for run in self.runs for test in run.failed if (run.session, test.module) in forgiven
        ]

    @property
    def failures(self) -> list[tuple[str, str]]:
        """What failed, a test's node ID or a session, and the first sentence of why."""
        forgiven = self._forgiven()
        told = []
        for run in self.runs:
            if run.leak:
                told.append((run.session, run.leak))
            elif run.unexplained:
                told.append((run.session, f"exit code {run.code}; see its lines above"))
            told += [(test.test, test.sentence) for test in run.failed if (run.session, test.module) not in forgiven]
        return told

    def document(self) -> dict[str, Any]:
        """For `build/verdict.json`."""
        return {
            "command": self.command,
            "commit": self.commit,
            "clean": self.clean,
            "passed": self.passed,
            "seconds": round(self.seconds, 1),
            "sessions": [
                {
                    "session": run.session,
                    "seconds": round(run.seconds, 1),
                    "result": self._session_result(run),
                    **{outcome.value: run.count(outcome) for outcome in Outcome},
                }
                for run in self.runs
            ],
            "failed": [test for test, _ in self.failures],
            "flaky": [test.test for _, test in self.flaky],
            "slowest": [{"test": test.test, "seconds": round(test.seconds, 1)} for test in self._slowest()],
        }

    def lines(self) -> Iterator[str]:
        """For the end of the output; what matters most comes last, as the last lines are what is kept of it."""
        yield f"== the slowest {SLOWEST} tests"
        for test in self._slowest():
            yield f"{test.seconds:8.1f} s  {test.test}"
        yield "== sessions"
        for run in self.runs:
            counts = ", ".join(f"{run.count(outcome)} {outcome}" for outcome in Outcome if run.count(outcome))
            yield f"{run.seconds:8.1f} s  {run.session}: {self._session_result(run)}{f' ({counts})' if counts else ''}"
        for rerun in self.reruns:
            said = "passed" if rerun.passed else "failed again"
            yield f"{rerun.run.seconds:8.1f} s  {rerun.module} once more, alone: {said}"
        if self.flaky:
            yield "== FLAKY: failed, and passed when the module was run alone; to be mended before new features"
            yield from (f"{test.test}: {test.sentence}" for _, test in self.flaky)
        if self.failures:
            yield "== FAILED"
            yield from (f"{test}: {sentence}" for test, sentence in self.failures)
        state = "" if self.clean else " with uncommitted changes"
        minutes, seconds = divmod(round(self.seconds), 60)
        said = "passed" if self.passed else "failed"
        yield f"== {self.command}: {said} in {minutes} min {seconds} s, at {self.commit[:9]}{state}"
        passed = sum(run.count(Outcome.PASSED) for run in self.runs) + len(self.flaky)
        skipped = sum(run.count(Outcome.SKIPPED) for run in self.runs)
        yield f"{passed} passed, {len(self.failures)} failed, {skipped} skipped"

    def _forgiven(self) -> set[tuple[str, str]]:
        return {(rerun.run.session, rerun.module) for rerun in self.reruns if rerun.passed}

    def _session_result(self, run: SessionRun) -> str:
        if run.code == 0 and not run.leak:
            return "passed"
        unforgiven = (
            bool(run.leak)
            or run.unexplained
            or any((run.session, module) not in self._forgiven() for module in run.failed_modules)
        )
        return "failed" if unforgiven else "flaky"

    def _slowest(self) -> list[TestResult]:
        tests = [test for run in self.runs for test in run.results]
        return sorted(tests, key=lambda test: -test.seconds)[:SLOWEST]
