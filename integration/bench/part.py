"""A part of the benchmarks: figures that are measured together, because they come out of the same runs."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from integration.bench.figure import Figure, Reading

Measure = Callable[[Collection[Figure]], Iterable[Reading]]


@dataclass(frozen=True, slots=True)
class Part:
    """`measure` takes the figures that are wanted (never none) and yields readings as they become known.

    It may yield more than was asked, may raise at any point, and has undone what it set up when it ends either way.
    `fetch` brings what it needs from the package sources into the cache: it runs first, as there is no network in the
    room where everything is measured.
    """

    name: str
    figures: tuple[Figure, ...]
    measure: Measure
    fetch: Callable[[], object] | None = None


def take_readings(part: Part, wanted: Collection[Figure]) -> list[Reading]:
    """One reading for each wanted figure of the part, in the part's order; what failed has no value but a reason.

    An interruption from the keyboard or a signal is not a failed measurement and goes through.
    """
    taken: dict[Figure, Reading] = {}
    reason = f"the part {part.name} did not report it"
    try:
        for reading in part.measure(wanted):
            taken[reading.figure] = reading
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    return [
        taken.get(figure) or Reading(figure=figure, value=None, note=reason)
        for figure in part.figures
        if figure in wanted
    ]
