"""A grid of cells, one for each address of a block or block of a pool, and the bar that sums such a grid up.

States differ in shape and not by colour alone (see `style`). What a cell means is in its tip, which the style shows
when it is pointed at; for those who cannot point there is the grid's label, and a table further down.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from coil.page.markup import Html, tag
from coil.page.wording import percent_text

COLUMNS = 16


@dataclass(frozen=True, slots=True)
class Cell:
    """`mark` is a class of the style; `find` what to search for when the cell is clicked, empty for nothing."""

    mark: str
    tip: str
    find: str = ""
    hit: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a bar."""

    mark: str
    amount: int


def render_grid(cells: Iterable[Cell], *, label: str) -> Html:
    """The cells in rows of `COLUMNS`."""
    return tag("div", map(_render_cell, cells), class_="grid", role="img", aria_label=label)


def render_bar(segments: Iterable[Segment], *, total: int, label: str) -> Html:
    """A bar of the segments from the left; what is missing to `total` stays empty."""
    width = 1000
    parts = []
    left = 0.0
    for segment in segments:
        if segment.amount <= 0 or total <= 0:
            continue
        # Whatever is there is seen.
        length = max(width * segment.amount / total, 4.0)
        parts.append(tag("rect", class_=segment.mark, x=round(left, 1), y=0, width=round(length, 1), height=8))
        left += length
    return tag(
        "svg", parts, class_="bar", viewBox=f"0 0 {width} 8", preserveAspectRatio="none", role="img", aria_label=label
    )


def render_meter(mark: str, part: int, whole: int) -> Html:
    """A bar of one share."""
    return render_bar([Segment(mark, part)], total=whole, label=percent_text(part, whole))


def _render_cell(cell: Cell) -> Html:
    mark = f"{cell.mark} hit" if cell.hit else cell.mark
    return tag("i", class_=mark, data_tip=cell.tip, data_find=cell.find or None)
