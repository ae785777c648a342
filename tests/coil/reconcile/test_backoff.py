import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.reconcile.backoff import Backoff


def test_growth_up_to_the_cap() -> None:
    backoff = Backoff(base=0.5, cap=10.0)
    assert [backoff.delay(attempt, lambda: 0.0) for attempt in range(7)] == [0.5, 1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 1.0), (0.5, 0.875), (1.0, 0.75)])
def test_the_share_of_chance(chance: float, delay: float) -> None:
    assert Backoff(base=1.0, cap=10.0, jitter=0.25).delay(0, lambda: chance) == delay


@given(
    attempt=st.integers(0, 10**6),
    chance=st.floats(0, 1, exclude_max=True),
    jitter=st.floats(0, 1),
    factor=st.floats(1, 10),
)
def test_a_delay_is_never_beyond_its_bounds(attempt: int, chance: float, jitter: float, factor: float) -> None:
    backoff = Backoff(base=0.2, cap=30.0, factor=factor, jitter=jitter)
    assert 0.2 * (1 - jitter) <= backoff.delay(attempt, lambda: chance) <= 30.0


@pytest.mark.parametrize(
    "arguments",
    [
        {"base": 0.0, "cap": 1.0},
        {"base": 2.0, "cap": 1.0},
        {"base": 1.0, "cap": 2.0, "factor": 0.5},
        {"base": 1.0, "cap": 2.0, "jitter": 1.5},
        {"base": 1.0, "cap": 2.0, "jitter": -0.1},
    ],
)
def test_nonsense_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"backoff|jitter"):
        Backoff(**arguments)
