"""Running the tests, with a stand-in for `e2e.test`: who runs which spec, and what a missing result is told by."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from integration.cluster.cluster import Cluster
from integration.cluster.process import Process
from integration.conformance.images import REGISTRY, repo_list
from integration.conformance.report import Outcome
from integration.conformance.suite import Suite, SuiteError, list_specs

SPECS = [f"[sig-network] Services should do {number} (really) [Conformance]" for number in range(5)]
E2E_TEST = """#!/usr/bin/python3
import pathlib, re, sys
specs = [f"[sig-network] Services should do {number} (really) [Conformance]" for number in range(5)]
specs += ["[sig-network] Services should be alone [Serial] [Conformance]"]
focus = [flag.split("=", 1)[1] for flag in sys.argv if flag.startswith("--ginkgo.focus=")]
[folder] = [pathlib.Path(flag.split("=", 1)[1]) for flag in sys.argv if flag.startswith("--report-dir=")]
names = [name for name in specs if any(re.search(each, f"The suite {name}") for each in focus)]
broken = pathlib.Path(__file__).with_name("broken")
if broken.exists() and "--ginkgo.dry-run" not in sys.argv:
    sys.exit("no cluster to be seen")
cases = "".join(f'<testcase name="[It] {name}" status="passed" time="1"></testcase>' for name in names)
(folder / "junit_01.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
"""


@pytest.fixture
def forgotten() -> list[str]:
    """Names of processes that are not expected to run any more."""
    return []


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: list[str]) -> Suite:
    """On a cluster that is none: a process of it is a process."""
    program = tmp_path / "assets" / "e2e.test"
    program.parent.mkdir()
    program.write_text(E2E_TEST)
    program.chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(program.parent))

    def spawn(name: str, argv: list[str], *, env: dict[str, str], log: Path) -> Process:
        return Process(name, argv, cluster="test", env=env, log=log)

    def forget(*names: str) -> None:
        assert names
        forgotten.extend(names)

    plane = SimpleNamespace(admin_kubeconfig=tmp_path / "admin.kubeconfig")
    workspace = SimpleNamespace(spawn=spawn, forget=forget, make_folder=tmp_path.joinpath)
    cluster: Any = SimpleNamespace(plane=plane, workspace=workspace)
    return Suite(cast(Cluster, cluster), tmp_path / "results")


def test_a_regular_expression_selects_specs(suite: Suite, tmp_path: Path) -> None:
    assert list_specs(r"do [12]", tmp_path / "specs") == SPECS[1:3]
    with pytest.raises(SuiteError, match="no spec is selected by nonsense"):
        list_specs("nonsense", tmp_path / "none")


def test_each_spec_runs_once_whatever_is_in_its_name(suite: Suite, forgotten: list[str]) -> None:
    results = suite.run(SPECS, processes=2)
    assert sorted(result.name for result in results) == SPECS
    assert {result.outcome for result in results} == {Outcome.PASSED}
    assert len(list(suite.folder.rglob("junit_01.xml"))) == 2
    assert sorted(forgotten) == ["e2e-1", "e2e-2"]


def test_serial_specs_run_alone(suite: Suite) -> None:
    alone = "[sig-network] Services should be alone [Serial] [Conformance]"
    assert len(suite.run([alone, SPECS[0]], processes=3)) == 2
    reports = [path.read_text() for path in suite.folder.rglob("junit_01.xml")]
    assert [len(re.findall("testcase name", report)) for report in reports] == [1, 1]


def test_a_spec_without_a_result_is_an_error_with_what_was_said(suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "assets" / "broken").touch()
    with pytest.raises(SuiteError, match=r"(?s)no result of 5 specs, .*do 0.*no cluster to be seen"):
        suite.run(SPECS)


def test_no_image_is_asked_of_a_registry_that_exists() -> None:
    assert set(json.loads(repo_list()).values()) == {REGISTRY}
