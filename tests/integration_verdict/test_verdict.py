"""What follows from the results of the sessions, and what is told of it."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from integration.uplink_watch import LEAKED, describe_leaks
from integration.verdict import __main__ as command
from integration.verdict.__main__ import keep_flakes
from integration.verdict.layer import FINAL, Layer
from integration.verdict.result import REPOSITORY, Outcome, TestResult
from integration.verdict.verdict import Rerun, SessionRun, Verdict, select_reruns

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def result(module: str, name: str, outcome: Outcome, *, seconds: float = 1.0) -> TestResult:
    sentence = f"{name} is broken" if outcome is Outcome.FAILED else ""
    return TestResult(test=f"{module}::{name}", module=module, outcome=outcome, seconds=seconds, sentence=sentence)


GOOD = result("a.py", "good", Outcome.PASSED)
BAD = result("b.py", "bad", Outcome.FAILED, seconds=9.0)
WORSE = result("c.py", "worse", Outcome.FAILED)


def session(*results: TestResult, code: int = 0, name: str = "unit") -> SessionRun:
    return SessionRun(session=name, code=code, seconds=10.0, results=results)


def verdict(*runs: SessionRun, reruns: Sequence[Rerun] = ()) -> Verdict:
    return Verdict(command="make test", commit="c0ffee", clean=True, seconds=61.0, runs=runs, reruns=reruns)


def test_what_has_no_failure_passes() -> None:
    judged = verdict(session(GOOD), session(name="lint"))
    assert judged.passed
    assert list(judged.lines())[-2:] == [
        "== make test: passed in 1 min 1 s, at c0ffee",
        "1 passed, 0 failed, 0 skipped",
    ]


def test_a_failure_is_named_with_its_sentence_in_the_last_lines() -> None:
    judged = verdict(session(GOOD, BAD, code=1))
    assert not judged.passed
    assert list(judged.lines())[-4:] == [
        "== FAILED",
        "b.py::bad: bad is broken",
        "== make test: failed in 1 min 1 s, at c0ffee",
        "1 passed, 1 failed, 0 skipped",
    ]


def test_a_module_that_passes_alone_is_flaky_and_the_run_passes() -> None:
    rerun = Rerun(module="b.py", run=session(result("b.py", "bad", Outcome.PASSED)))
    judged = verdict(session(GOOD, BAD, code=1), reruns=[rerun])
    assert judged.passed
    assert "b.py::bad: bad is broken" in judged.lines()
    assert judged.document()["flaky"] == ["b.py::bad"]
    assert judged.document()["failed"] == []
    assert judged.document()["sessions"][0]["result"] == "flaky"


def test_what_fails_twice_has_failed() -> None:
    rerun = Rerun(module="b.py", run=session(BAD, code=1))
    judged = verdict(session(GOOD, BAD, code=1), reruns=[rerun])
    assert not judged.passed
    assert (judged.flaky, judged.document()["failed"]) == ([], ["b.py::bad"])


def test_a_rerun_in_which_nothing_ran_proves_nothing() -> None:
    for run in (session(), session(result("b.py", "bad", Outcome.SKIPPED))):
        assert not verdict(session(BAD, code=1), reruns=[Rerun(module="b.py", run=run)]).passed


def test_a_rerun_speaks_for_its_session_only() -> None:
    rerun = Rerun(module="b.py", run=session(result("b.py", "bad", Outcome.PASSED)))
    judged = verdict(session(BAD, code=1), session(BAD, code=1, name="slow"), reruns=[rerun])
    assert not judged.passed
    assert [run["result"] for run in judged.document()["sessions"]] == ["flaky", "failed"]


def test_a_session_that_fails_by_no_test_has_failed() -> None:
    judged = verdict(session(GOOD), session(name="lint", code=2))
    assert judged.failures == [("lint", "exit code 2; see its lines above")]


def test_all_modules_that_failed_are_run_again_or_none() -> None:
    runs = [session(GOOD, BAD, BAD, code=1), session(WORSE, code=1, name="cluster")]
    assert select_reruns(runs, limit=2) == [("unit", "b.py"), ("cluster", "c.py")]
    assert select_reruns(runs, limit=1) == []


def test_a_failure_of_what_is_drawn_at_random_is_final() -> None:
    fuzzer = next(iter(FINAL))
    assert all((REPOSITORY / module).is_file() for module in FINAL)
    found = result(fuzzer, "another_tenants_address_is_seen", Outcome.FAILED)
    runs = [session(found, BAD, code=1)]
    assert select_reruns(runs, limit=1, final=FINAL) == [("unit", "b.py")]
    judged = verdict(*runs, reruns=[Rerun(module="b.py", run=session(result("b.py", "bad", Outcome.PASSED)))])
    assert not judged.passed
    assert judged.document()["failed"] == [found.test]


@pytest.mark.parametrize("module", [next(iter(FINAL)), "b.py"])
def test_only_a_module_whose_failure_is_not_final_is_run_again(
    module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As `make test` does it, with sessions of which the first run fails and the second one passes."""
    repeated: list[str] = []

    async def run_first(names: Sequence[str]) -> list[SessionRun]:
        failed = result(module, "bad", Outcome.FAILED)
        return [session(failed, code=1, name=name) if name == "eip" else session(name=name) for name in names]

    async def run_again(which: str, again: str, **_: str) -> SessionRun:
        repeated.append(again)
        return session(result(again, "bad", Outcome.PASSED), name=which)

    monkeypatch.setattr(command, "run_step", run_first)
    monkeypatch.setattr(command, "run_session", run_again)
    for folder in ("FOLDER", "CALLS"):
        monkeypatch.setattr(command, folder, tmp_path / folder)
    judged = asyncio.run(command.judge(Layer(command="make test", steps=(("eip",),), reruns=6)))
    assert (judged.passed, repeated) == ((False, []) if module in FINAL else (True, [module]))


def test_packets_that_left_the_machine_are_no_flake_of_a_test() -> None:
    leaked = replace(session(GOOD, BAD, code=1), leak=describe_leaks(["eth0: a packet"]))
    assert select_reruns([leaked, session(WORSE, code=1)], limit=6) == []
    judged = verdict(leaked)
    assert f"unit: {LEAKED}: eth0: a packet" in judged.lines()
    assert ("unit", leaked.leak) in judged.failures


def test_the_document_has_what_the_lines_have() -> None:
    document = verdict(session(GOOD, BAD, code=1)).document()
    assert document["slowest"][0] == {"test": "b.py::bad", "seconds": 9.0}
    assert (document["commit"], document["clean"], document["passed"]) == ("c0ffee", True, False)
    assert document["sessions"] == [
        {"session": "unit", "seconds": 10.0, "result": "failed", "passed": 1, "failed": 1, "skipped": 0}
    ]


def test_flakes_are_added_to_those_of_former_runs(tmp_path: Path) -> None:
    path = tmp_path / "flaky.json"
    path.write_text("half a record")
    rerun = Rerun(module="b.py", run=session(result("b.py", "bad", Outcome.PASSED)))
    for _ in range(2):
        keep_flakes(path, verdict(session(BAD, code=1), reruns=[rerun]), now=NOW)
    keep_flakes(path, verdict(session(GOOD)), now=NOW)
    entry = {
        "time": "2026-01-02T00:00:00+00:00",
        "commit": "c0ffee",
        "session": "unit",
        "test": "b.py::bad",
        "sentence": "bad is broken",
    }
    assert json.loads(path.read_text()) == [entry, entry]
