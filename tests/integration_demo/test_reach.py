import pytest

from integration.demo.inventory import PodRow
from integration.demo.reach import compare_answers, render_requests, url


def pod(name: str, ipv4: str, ipv6: str) -> PodRow:
    return PodRow(namespace="web", name=name, node="node-1", ipv4=ipv4, ipv6=ipv6, block="default-0", pool="default")


TARGETS = [pod("a", "10.0.0.1", "fd00::1"), pod("b", "10.0.0.2", ""), pod("c", "", "fd00::3")]


def test_an_ipv6_address_is_bracketed_in_a_url() -> None:
    assert url("fd00::1") == "http://[fd00::1]:8080/name"
    assert url("10.0.0.1") == "http://10.0.0.1:8080/name"


def test_each_address_is_asked_once_and_families_that_a_pod_lacks_are_not() -> None:
    requests = render_requests(TARGETS).split("; ")
    assert len(requests) == 4
    for request, address in zip(requests, ("10.0.0.1", "fd00::1", "10.0.0.2", "fd00::3"), strict=True):
        assert url(address) in request


def test_nothing_is_said_when_every_pod_answers_with_its_name() -> None:
    assert compare_answers("x", "a\na\nb\nc\n", TARGETS) == []


@pytest.mark.parametrize(
    ("printed", "gaps"),
    [
        ("a\n\nb\nc\n", ["x asked a at fd00::1 and got ''"]),
        ("a\na\nc\nc\n", ["x asked b at 10.0.0.2 and got 'c'"]),
        ("a\na\nb\n", ["x asked c at fd00::3 and got ''"]),
        ("a\n", [f"x asked {name} and got ''" for name in ("a at fd00::1", "b at 10.0.0.2", "c at fd00::3")]),
    ],
)
def test_silence_and_the_wrong_pods_answer_are_gaps(printed: str, gaps: list[str]) -> None:
    assert compare_answers("x", printed, TARGETS) == gaps
