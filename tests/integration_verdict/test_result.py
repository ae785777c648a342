"""What pytest leaves is read as it is: of real runs of pytest, with a process and with several."""

import subprocess
import sys
from pathlib import Path

import pytest

from integration.verdict.result import Outcome, TestResult, load_results

MODULE = '''
import pytest
from hypothesis.stateful import RuleBasedStateMachine, rule


def test_good(): ...


@pytest.mark.parametrize("text", ["a::b", "c d"])
def test_bad(text):
    """Fails."""
    assert text == "", f"it is {text}\\nand more"


def test_faults():
    raise AssertionError("afterwards, 5 s later:\\nthe first\\nthe second")


@pytest.mark.skip(reason="no")
def test_skipped(): ...


@pytest.fixture
def broken():
    yield
    raise RuntimeError("teardown broke")


class Machine(RuleBasedStateMachine):
    @rule()
    def step(self):
        assert False, "the machine broke"


TestMachine = Machine.TestCase


class TestGroup:
    def test_teardown(self, broken): ...

    def test_both(self, broken):
        raise ValueError("call broke")
'''


def run_pytest(folder: Path, *arguments: str) -> Path:
    (folder / "sub").mkdir()
    (folder / "sub" / "test_some.py").write_text(MODULE)
    (folder / "sub" / "test_broken.py").write_text("import there_is_no_such_module\n")
    report = folder / "report.xml"
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        f"--junitxml={report}",
        "-o",
        "junit_family=xunit1",
        *arguments,
        "sub",
    ]
    subprocess.run(argv, cwd=folder, capture_output=True, check=False, timeout=120)
    return report


@pytest.mark.parametrize("spread", [[], ["--numprocesses=2"]], ids=["one process", "two"])
def test_each_test_has_one_result(tmp_path: Path, spread: list[str]) -> None:
    options = ["--continue-on-collection-errors", *spread]
    results = {result.test: result for result in load_results(run_pytest(tmp_path, *options), root=tmp_path)}
    module = "sub/test_some.py"
    outcomes = {test: result.outcome for test, result in results.items() if result.module == module}
    assert outcomes == {
        f"{module}::test_good": Outcome.PASSED,
        f"{module}::test_bad[a::b]": Outcome.FAILED,
        f"{module}::test_bad[c d]": Outcome.FAILED,
        f"{module}::test_faults": Outcome.FAILED,
        f"{module}::test_skipped": Outcome.SKIPPED,
        f"{module}::TestGroup::test_teardown": Outcome.FAILED,
        f"{module}::TestGroup::test_both": Outcome.FAILED,
        f"{module}::TestMachine::runTest": Outcome.FAILED,
    }
    assert results[f"{module}::test_bad[c d]"].sentence == "AssertionError: it is c d"
    assert results[f"{module}::test_faults"].sentence == "AssertionError: afterwards, 5 s later: the first"
    both = results[f"{module}::TestGroup::test_both"].sentence
    assert "call broke" in both
    assert "teardown broke" in both
    assert "teardown broke" in results[f"{module}::TestGroup::test_teardown"].sentence
    broken = results["sub/test_broken.py"]
    assert (broken.module, broken.outcome) == ("sub/test_broken.py", Outcome.FAILED)


def test_a_run_that_left_nothing_or_half_of_it_has_no_results(tmp_path: Path) -> None:
    assert load_results(tmp_path / "absent.xml") == []
    half = tmp_path / "half.xml"
    half.write_text("<testsuites><testsuite><testcase name=")
    assert load_results(half) == []


def test_a_message_is_its_first_sentence(tmp_path: Path) -> None:
    report, module = tmp_path / "report.xml", tmp_path / "a" / "test_b.py"
    module.parent.mkdir()
    module.touch()
    report.write_text(
        '<testsuites><testsuite><testcase classname="a.test_b" name="test_c" time="1.5">'
        f'<failure message="\n  {"x" * 1000}\nmore"/></testcase></testsuite></testsuites>'
    )
    assert load_results(report, root=tmp_path) == [
        TestResult(
            test="a/test_b.py::test_c", module="a/test_b.py", outcome=Outcome.FAILED, seconds=1.5, sentence="x" * 300
        )
    ]
