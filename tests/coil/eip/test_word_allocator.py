"""Numbers of names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.eip import element_ledger
from coil.eip.element_ledger import WordAllocator


@given(st.sets(st.text(), max_size=50))
def test_a_name_has_the_same_number_everywhere(names: set[str]) -> None:
    words = {name: WordAllocator().allocate(name) for name in names}
    assert all(re.fullmatch(r"[1-9a-f][0-9a-f]{0,3}:[1-9a-f][0-9a-f]{0,3}", word) for word in words.values())
    together = WordAllocator()
    assert {name: together.allocate(name) for name in names} == words


def test_two_names_never_share_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(element_ledger, "_COUNT", 3)
    allocator = WordAllocator()
    words = [allocator.allocate(name) for name in "abc"]
    assert sorted(words) == ["1:2", "1:3", "1:4"]
    allocator.release(words[1])
    assert allocator.allocate("d") == words[1]
