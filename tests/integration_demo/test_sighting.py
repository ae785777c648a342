import pytest

from integration.demo.sighting import Sighting, find_mistakes

ROUTERS = {"10.0.0.2": "nat-a", "fd00::2": "nat-a", "10.0.0.3": "nat-b"}


def sighting(seen: str, *, annotated: bool) -> Sighting:
    return Sighting(pod="web", annotated=annotated, own="10.0.0.9", seen=seen)


@pytest.mark.parametrize(
    ("seen", "who"),
    [
        ("10.0.0.3", "router nat-b"),
        ("fd00::2", "router nat-a"),
        ("10.0.0.9", "the pod itself"),
        ("10.0.0.4", "nobody that is known here"),
    ],
)
@pytest.mark.parametrize("annotated", [True, False])
def test_who_was_seen_does_not_depend_on_who_should_have_been(seen: str, who: str, *, annotated: bool) -> None:
    assert sighting(seen, annotated=annotated).who(ROUTERS) == who


@pytest.mark.parametrize(
    ("seen", "annotated", "right"),
    [
        ("10.0.0.2", True, True),
        ("10.0.0.3", True, True),
        ("10.0.0.9", True, False),
        ("10.0.0.4", True, False),
        ("", True, False),
        ("10.0.0.9", False, True),
        ("10.0.0.2", False, False),
        ("10.0.0.4", False, False),
    ],
)
def test_annotated_pods_are_to_be_seen_as_routers_and_others_as_themselves(
    seen: str, *, annotated: bool, right: bool
) -> None:
    assert (find_mistakes([sighting(seen, annotated=annotated)], ROUTERS) == []) is right


def test_a_mistake_says_who_was_seen_instead() -> None:
    [mistake] = find_mistakes([sighting("10.0.0.9", annotated=True)], ROUTERS)
    assert mistake == "web (10.0.0.9) was seen as 10.0.0.9, which is the pod itself"
