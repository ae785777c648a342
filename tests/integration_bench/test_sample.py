import pytest
from hypothesis import given
from hypothesis import strategies as st

from integration.bench.sample import paired_ratios, percentile, spread

samples = st.lists(st.floats(min_value=0, max_value=1e6), min_size=1)


@pytest.mark.parametrize(("percent", "expected"), [(1, 1), (50, 50), (95, 95), (99, 99), (99.5, 100), (100, 100)])
def test_nearest_rank(percent: float, expected: float) -> None:
    assert percentile(range(100, 0, -1), percent) == expected


@given(samples)
def test_whole_range(values: list[float]) -> None:
    assert percentile(values, 100) == max(values)
    assert percentile(values, 0.0001) == min(values)


@given(samples, st.floats(min_value=0.1, max_value=100))
def test_is_a_sample_with_the_right_share_at_or_below_it(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values)


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 99)


def test_spread_names_both_ends() -> None:
    assert spread([3.25, 1.5, 2]) == "1.5 … 3.25"


def test_ratios_are_of_runs_beside_each_other() -> None:
    assert paired_ratios([1, 6], [2, 3]) == [0.5, 2]
    with pytest.raises(ValueError, match="shorter"):
        paired_ratios([1, 2], [1])
