from hypothesis import given
from hypothesis import strategies as st

from coil.eni.surplus import SurplusWindow

WINDOW = 10.0


def test_only_what_lasts_a_whole_window_is_too_many() -> None:
    window = SurplusWindow(WINDOW)
    window.note(5, now=0.0)
    assert window.lasting(now=9.0) == 0
    assert window.next_lasting(now=9.0) == 1.0
    assert window.lasting(now=10.0) == 5
    window.note(8, now=12.0)
    assert window.lasting(now=20.0) == 5
    assert window.lasting(now=22.0) == 8
    window.note(3, now=23.0)
    assert window.lasting(now=23.0) == 3
    window.note(-1, now=24.0)
    assert window.lasting(now=24.0) == 0
    assert window.next_lasting(now=24.0) is None


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-5, 9)), min_size=1, max_size=40), st.integers(0, 20))
def test_it_is_the_minimum_of_the_window(steps: list[tuple[int, int]], rest: int) -> None:
    """Against the definition: the value at each moment of the last window."""
    window = SurplusWindow(WINDOW)
    now, history = 0.0, []
    for delay, surplus in steps:
        now += delay
        window.note(surplus, now=now)
        history.append((now, surplus))
    now += rest
    first = now - WINDOW
    before = [surplus for at, surplus in history if at <= first]
    during = [surplus for at, surplus in history if at > first]
    expected = max(0, min([before[-1], *during])) if before else 0
    assert window.lasting(now=now) == expected
