import pytest

from integration.demo.call_count import changes, count_rows, find_excess

ASSIGN, CREATE = "AssignPrivateIpAddresses", "CreateNetworkInterface"
ATTACH, MODIFY = "AttachNetworkInterface", "ModifyNetworkInterfaceAttribute"
LOOK = "DescribeNetworkInterfaces"
USUAL = [LOOK, ASSIGN, LOOK, CREATE, ATTACH, MODIFY, LOOK, CREATE, ATTACH, MODIFY]


def test_whoever_only_looks_changes_nothing() -> None:
    assert changes(USUAL) == [ASSIGN, CREATE, ATTACH, MODIFY, CREATE, ATTACH, MODIFY]
    assert changes([LOOK, "DescribeInstanceTypes"]) == []


def test_what_changes_something_is_listed_first() -> None:
    rows = [(ASSIGN, "1"), (CREATE, "2"), (ATTACH, "2"), (MODIFY, "2"), (LOOK, "3")]
    assert count_rows(USUAL) == rows


def test_as_many_calls_as_interfaces_need_are_no_excess() -> None:
    assert find_excess(USUAL, launched=1, added=2) == []


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (ASSIGN, f"calls of {ASSIGN}: 2, where 1 are enough"),
        (CREATE, f"calls of {CREATE}: 3, where 2 are enough"),
        (ATTACH, f"calls of {ATTACH}: 3, where 2 are enough"),
        (MODIFY, f"calls of {MODIFY}: 3, where 2 are enough"),
        ("UnassignPrivateIpAddresses", "calls of UnassignPrivateIpAddresses: 1, where 0 are enough"),
    ],
)
def test_one_call_more_is_told(more: str, sentence: str) -> None:
    assert find_excess([*USUAL, more], launched=1, added=2) == [sentence]


def test_looks_are_not_counted() -> None:
    assert find_excess([LOOK] * 100, launched=0, added=0) == []
