"""The plan of the faults."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from integration.soak.fault import COUNTS, ON_COILD, SECONDS, Fault, draw_faults, split_rounds

NODES = 3


def draw(seed: str, *, operations: int = 3000) -> list[Fault]:
    return draw_faults(Random(seed), operations=operations, usual=3000, nodes=NODES, survivor_from=operations // 2)


def test_a_usual_run_has_the_usual_faults_in_order() -> None:
    faults = draw("a")
    assert Counter(fault.kind for fault in faults) == COUNTS
    assert [fault.after for fault in faults] == sorted(fault.after for fault in faults)


def test_the_seed_decides_everything() -> None:
    assert draw("a") == draw("a")
    assert draw("a") != draw("b")


@given(st.text(min_size=1), st.integers(min_value=300, max_value=20_000))
def test_every_kind_strikes_within_the_run_and_lasts_as_long_as_it_should(seed: str, operations: int) -> None:
    faults = draw(seed, operations=operations)
    assert {fault.kind for fault in faults} == set(COUNTS)
    for fault in faults:
        assert 0 <= fault.after < operations
        assert 0 <= fault.node < NODES
        low, high = SECONDS.get(fault.kind, (0.0, 0.0))
        assert low <= fault.seconds <= high


@given(st.text(min_size=1))
def test_the_last_coild_lives_through_the_second_half(seed: str) -> None:
    late = [fault for fault in draw(seed) if fault.after >= 1500 and fault.kind in ON_COILD]
    assert NODES - 1 not in {fault.node for fault in late}


@given(st.text(min_size=1), st.integers(min_value=1, max_value=7))
def test_the_rounds_are_the_whole(seed: str, rounds: int) -> None:
    faults = draw(seed)
    parts = split_rounds(faults, operations=3000, rounds=rounds)
    assert len(parts) == rounds
    assert [fault for part in parts for fault in part] == faults


def test_a_longer_run_has_more() -> None:
    assert len(draw("a", operations=30_000)) == 10 * len(draw("a"))
