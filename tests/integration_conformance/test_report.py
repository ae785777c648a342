"""From the files that the tests leave to the table that people read."""

from pathlib import Path

import pytest

from integration.conformance.report import Outcome, Result, parse_results, read_results, render_table

JUNIT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="7">
  <testsuite name="Kubernetes e2e suite" tests="7">
    <testcase name="[SynchronizedBeforeSuite]" classname="x" status="passed" time="0.5"></testcase>
    <testcase name="[It] [sig-network] DNS should provide DNS for the cluster [Conformance]" status="passed" time="9.6">
    </testcase>
    <testcase name="[It] [sig-network] HostPort validates [LinuxOnly] [Conformance]" status="failed" time="301.2">
      <failure type="failed">[FAILED] Failed to connect
In [It] at: network/hostport.go:136</failure>
      <system-err>much more</system-err>
    </testcase>
    <testcase name="[It] [sig-network] Proxy should proxy [Conformance]" status="timedout" time="60"></testcase>
    <testcase name="[It] [sig-node] Pods should run [Conformance]" status="skipped" time="0">
      <skipped message="skipped"></skipped>
    </testcase>
    <testcase name="[It] [sig-node] Pods should wait" status="pending" time="0"></testcase>
    <testcase name="[ReportAfterSuite] Kubernetes e2e JUnit report" status="passed" time="0.1"></testcase>
  </testsuite>
</testsuites>
"""
DNS = Result("[sig-network] DNS should provide DNS for the cluster [Conformance]", Outcome.PASSED, 9.6)
HOST_PORT = Result("[sig-network] HostPort validates [LinuxOnly] [Conformance]", Outcome.FAILED, 301.2, "[FAILED] x")


def test_the_specs_that_ran_are_told_and_nothing_else() -> None:
    dns, host_port, proxy = parse_results(JUNIT)
    assert dns == DNS
    assert (host_port.outcome, host_port.seconds) == (Outcome.FAILED, 301.2)
    assert host_port.message.startswith("[FAILED] Failed to connect")
    # Whatever is not known to be good is not good.
    assert (proxy.outcome, proxy.message) == (Outcome.FAILED, "timedout")


def test_reports_of_several_processes_are_read_together(tmp_path: Path) -> None:
    for number in ("1", "2"):
        (tmp_path / number).mkdir()
        (tmp_path / number / "junit_01.xml").write_text(JUNIT)
    assert len(read_results(tmp_path)) == 6


def test_a_broken_report_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "junit_01.xml").write_text(JUNIT[:300])
    with pytest.raises(ValueError, match="not a JUnit file"):
        read_results(tmp_path)


def test_the_table_has_a_row_for_each_spec_of_any_run() -> None:
    assert render_table({"ipv4-first": [DNS, HOST_PORT], "ipv6-only": [DNS]}) == (
        "| spec | ipv4-first | ipv6-only |\n"
        "| --- | --- | --- |\n"
        "| DNS should provide DNS for the cluster | 10 s | 10 s |\n"
        "| HostPort validates | **failed** (301 s) | not run |\n"
        "| **passed** | 1 of 2 | 1 of 1 |"
    )
