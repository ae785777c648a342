"""Words of elements, and what leads from some to others."""

import pytest

from coil.kernel.nft_element import ElementChanges, SetName, class_word, diff_elements
from coil.kernel.nft_table import TableFamily

A, B = (SetName(TableFamily.INET, "t", name) for name in "ab")


@pytest.mark.parametrize(
    ("number", "word"), [(1, "1:1"), (0x1F, "1:1f"), (0xFFFF, "1:ffff"), (0x10000, "2:1"), (0xFFFF * 2, "2:ffff")]
)
def test_classes(number: int, word: str) -> None:
    assert class_word(number) == word


def test_differences() -> None:
    assert diff_elements({}, {}) == ElementChanges()
    assert not diff_elements({A: {"x": 1}}, {A: {"x": 1}, B: {}})
    changes = diff_elements({A: {"x": 1, "y": None}}, {A: {"x": 2}, B: {"z": None}})
    assert changes == ElementChanges(deletes={A: ("x", "y")}, adds={A: {"x": 2}, B: {"z": None}})
    assert len(changes) == 4
    assert str(A) == "a of table inet t"
