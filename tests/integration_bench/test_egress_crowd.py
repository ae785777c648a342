"""How the crowd is brought to its numbers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from integration.bench.egress_crowd import milestones


@pytest.mark.parametrize(
    ("present", "wanted", "expected"),
    [
        (0, 0, []),
        (0, 99, [99]),
        (99, 99, []),
        (99, 100, [100]),
        (99, 101, [100, 101]),
        (0, 300, [100, 200, 300]),
        (150, 350, [200, 300, 350]),
    ],
)
def test_a_fill_ends_at_every_hundred(present: int, wanted: int, expected: list[int]) -> None:
    assert milestones(present, wanted) == expected


@given(st.integers(0, 2000), st.integers(0, 2000))
def test_fills_are_short_and_lead_there(present: int, more: int) -> None:
    ends = [present, *milestones(present, present + more)]
    assert ends[-1] == present + more
    assert all(0 < after - before <= 100 for before, after in pairwise(ends))
