"""Whether what a client says of its target is right, and how it is told."""

from xml.etree.ElementTree import fromstring

import pytest

from coil.page.probe_answer import ProbeAnswer, Scheme, target_of
from kubectl_coil.connectivity.check import Check, failed, skipped
from kubectl_coil.connectivity.document import ConnectivityDocument, Outcome
from kubectl_coil.connectivity.junit import render_junit

TARGET = target_of(Scheme.TCP, "fd00::1", 8080)
PLAIN = Check(name="a pod", client="client", target=TARGET, version=6)
SOURCE = Check(name="a pod", client="client", target=TARGET, version=6, seen_as={"fd00::9"})
REFUSED = Check(name="a pod", client="client", target=TARGET, version=6, error="ECONNREFUSED")


@pytest.mark.parametrize(
    ("check", "answer", "error", "outcome", "detail"),
    [
        (PLAIN, "fd00::5", "", Outcome.PASSED, "fd00::5"),
        (PLAIN, "", "", Outcome.PASSED, ""),
        (PLAIN, "", "ETIMEDOUT", Outcome.FAILED, "ETIMEDOUT"),
        (SOURCE, "fd00::9", "", Outcome.PASSED, "seen as fd00::9"),
        (SOURCE, "fd00::5", "", Outcome.FAILED, "seen as fd00::5, not fd00::9"),
        (SOURCE, "", "", Outcome.FAILED, "seen as , not fd00::9"),
        (REFUSED, "", "ECONNREFUSED", Outcome.PASSED, "fails with ECONNREFUSED"),
        (REFUSED, "", "ETIMEDOUT", Outcome.FAILED, "fails with ETIMEDOUT, not ECONNREFUSED"),
        (REFUSED, "fd00::9", "", Outcome.FAILED, "fails with nothing, not ECONNREFUSED"),
    ],
)
def test_answers(check: Check, answer: str, error: str, outcome: Outcome, detail: str) -> None:
    found = check.judge(ProbeAnswer(target=TARGET, answer=answer, error=error, seconds=0.25))
    assert (found.outcome, found.detail, found.family) == (outcome, detail, "IPv6")
    assert found.target == "tcp://[fd00::1]:8080"


def document(*, left_over: bool = False, fails: bool = True) -> ConnectivityDocument:
    checks = [
        PLAIN.judge(ProbeAnswer(target=TARGET, answer="", error="", seconds=0.5)),
        skipped("names", "there is no DNS"),
        *([failed("the pod far starts", "ErrImagePull: \x1b[31mno <image> & no registry")] if fails else []),
    ]
    return ConnectivityDocument(namespace="n", nodes=("a", "b"), checks=tuple(checks), left_over=left_over)


def test_the_verdict() -> None:
    assert document(fails=False).passed
    assert not document().passed
    assert not document(fails=False, left_over=True).passed


def test_junit() -> None:
    suite = fromstring(render_junit(document()).partition("\n")[2])  # noqa: S314 - our own
    assert [suite.attrib[name] for name in ("tests", "failures", "skipped", "time")] == ["3", "1", "1", "0.500"]
    assert [case.attrib["name"] for case in suite] == [
        "a pod IPv6 tcp://[fd00::1]:8080",
        "names",
        "the pod far starts",
    ]
    [failure] = suite.iter("failure")
    assert failure.attrib["message"] == "ErrImagePull: \N{REPLACEMENT CHARACTER}[31mno <image> & no registry"
