"""The big numbers at the top of a page. Their keys are its legend."""

from collections.abc import Iterable

from coil.page.markup import Content, Html, tag
from coil.page.wording import count_text

LONG = 6
"""Letters of a number that a tile has room for in large type."""


def render_tiles(tiles: Iterable[Content]) -> Html:
    return tag("dl", tiles, class_="tiles")


def render_tile(name: str, amount: int, *, mark: str = "", note: str = "") -> Html:
    """`mark` is the state that the number counts, to be seen as in a grid."""
    key = tag("i", class_=f"key {mark}") if mark else None
    small = tag("small", note) if note else None
    number = count_text(amount)
    figure = tag("dd", number, small, class_="long" if len(number) > LONG else None)
    return tag("div", tag("dt", key, name), figure, class_="tile")
