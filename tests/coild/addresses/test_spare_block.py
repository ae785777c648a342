"""The spare of a pool against a record of all that ever was."""

from hypothesis import given
from hypothesis import strategies as st

from coil.crd.names import PoolName
from coil.ipam.occupancy import Tally
from coild.addresses.spare_block import SpareBlock

POOL = PoolName("default")
LINGER = 300.0
SIZE = 8


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def tally(*, capacity: int = 16, allocated: int = 0, cooling: int = 0) -> Tally:
    return Tally(capacity // SIZE, allocated, cooling, capacity - allocated - cooling)


def test_a_pool_in_use_or_waited_for_has_its_spare() -> None:
    spare = SpareBlock(4, LINGER, Clock())
    assert spare.shortfall(Tally(), waiting=0) == 0
    assert spare.shortfall(Tally(), waiting=1) == 4
    assert spare.shortfall(tally(allocated=13), waiting=0) == 1
    assert spare.shortfall(tally(allocated=8, cooling=5), waiting=0) == 1, "what rests is not free"
    assert spare.shortfall(tally(cooling=16), waiting=0) == 0, "nobody uses it"
    assert SpareBlock(0, LINGER, Clock()).shortfall(tally(allocated=16), waiting=3) == 0


def test_without_a_spare_nothing_stays() -> None:
    spare = SpareBlock(0, LINGER, Clock())
    assert spare.stay(POOL, tally(allocated=16), block_size=SIZE) == 0


@given(
    addresses=st.integers(1, 20),
    story=st.lists(st.tuples(st.sampled_from([0.0, 1.0, 60.0, 299.0, 301.0]), st.integers(0, 40)), min_size=1),
    capacity=st.integers(5, 10),
)
def test_a_block_stays_as_long_as_the_most_that_was_lately_needed_would_not_fit_without_it(
    addresses: int, story: list[tuple[float, int]], capacity: int
) -> None:
    clock = Clock()
    spare = SpareBlock(addresses, LINGER, clock)
    # Since when, until when, how many were in use.
    record: list[tuple[float, float, int]] = []
    for pause, used in story:
        if record:
            since, _, before = record[-1]
            record[-1] = since, clock.now + pause, before
        clock.now += pause
        record.append((clock.now, clock.now, used))
        spare.note(POOL, tally(capacity=capacity * SIZE, allocated=used))
    used = record[-1][2]
    peak = max(level for _, until, level in record if until > clock.now - LINGER or until == clock.now)
    needed = peak + addresses if peak else 0
    stay = spare.stay(POOL, tally(capacity=capacity * SIZE, allocated=used), block_size=SIZE)
    assert (stay == 0) == ((capacity - 1) * SIZE >= needed)
    assert 0 <= stay <= LINGER


def test_a_pool_without_blocks_is_forgotten() -> None:
    clock = Clock()
    spare = SpareBlock(4, LINGER, clock)
    spare.note(POOL, tally(allocated=16))
    spare.note(POOL, Tally())
    assert spare.stay(POOL, tally(capacity=8), block_size=SIZE) == 0
