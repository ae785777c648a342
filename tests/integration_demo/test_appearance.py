import pytest

from integration.demo.appearance import Appearance, find_mistakes

NAMES = {"198.18.0.120": "the EIP of shop", "fd00::78": "the EIP of shop", "198.18.0.13": "node n3"}


def appearance(seen: str, *, expected: str = "198.18.0.120") -> Appearance:
    return Appearance(pod="web", node="n3", own="10.244.2.2", seen=seen, expected=expected)


@pytest.mark.parametrize(
    ("seen", "who"),
    [
        ("198.18.0.120", "the EIP of shop"),
        ("fd00::78", "the EIP of shop"),
        ("198.18.0.13", "node n3"),
        ("10.244.2.2", "the pod itself"),
        ("198.18.0.14", "nobody that is known here"),
    ],
)
def test_who_was_seen_does_not_depend_on_who_should_have_been(seen: str, who: str) -> None:
    assert {appearance(seen, expected=expected).who(NAMES) for expected in (seen, "::1")} == {who}


def test_whoever_is_seen_as_expected_is_no_mistake() -> None:
    assert find_mistakes([appearance("198.18.0.120"), appearance("198.18.0.13", expected="198.18.0.13")], NAMES) == []


def test_a_mistake_says_who_was_seen_instead() -> None:
    [mistake] = find_mistakes([appearance("198.18.0.120"), appearance("198.18.0.13")], NAMES)
    assert mistake == "web (10.244.2.2) was seen as 198.18.0.13, which is node n3, and not as 198.18.0.120"
