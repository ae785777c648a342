"""Tables: what the grids show, in words."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from coil.page.markup import Content, Html, tag
from coil.page.wording import age_text, clock_text, stamp


def render_table(heads: Sequence[str], rows: Iterable[Sequence[Content]], *, caption: str) -> Html:
    """A table that scrolls sideways by itself when the window is narrow. The first cell of a row is its head."""
    head = tag("thead", tag("tr", (tag("th", name, scope="col") for name in heads)))
    body = tag("tbody", (tag("tr", tag("th", row[0], scope="row"), map(_cell, row[1:])) for row in rows))
    table = tag("table", tag("caption", caption), head, body)
    # It can be scrolled, so it must be reachable by keyboard.
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def render_since(since: datetime, now: datetime) -> Html:
    """How long ago, with the moment itself behind it."""
    return tag("time", age_text(since, now), datetime=stamp(since), title=clock_text(since))


def _cell(content: Content) -> Html:
    return tag("td", content)
