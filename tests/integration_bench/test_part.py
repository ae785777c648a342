from collections.abc import Collection, Iterator

import pytest

from integration.bench.figure import Figure, Reading
from integration.bench.part import Part, take_readings

ONE, TWO, THREE = (Figure(name, "ms") for name in ("one", "two", "three"))


def part_with(*readings: Reading, error: BaseException | None = None) -> Part:
    def measure(_wanted: Collection[Figure]) -> Iterator[Reading]:
        yield from readings
        if error:
            raise error

    return Part("counting", (ONE, TWO, THREE), measure)


def test_readings_come_in_the_parts_order_and_only_as_asked() -> None:
    readings = [Reading(figure=figure, value=1.0) for figure in (THREE, ONE, TWO)]
    taken = take_readings(part_with(*readings), {THREE, ONE})
    assert [reading.figure for reading in taken] == [ONE, THREE]


def test_a_failure_keeps_what_is_known_and_names_the_reason_for_the_rest() -> None:
    part = part_with(Reading(figure=TWO, value=5.0), error=OSError("no such device"))
    one, two, three = take_readings(part, (ONE, TWO, THREE))
    assert two.value == 5.0
    assert [(reading.value, reading.note) for reading in (one, three)] == [(None, "OSError: no such device")] * 2


def test_a_figure_that_was_forgotten_is_not_left_out() -> None:
    (reading,) = take_readings(part_with(), {ONE})
    assert reading == Reading(figure=ONE, value=None, note="the part counting did not report it")


def test_an_interruption_goes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        take_readings(part_with(error=KeyboardInterrupt()), {ONE})
