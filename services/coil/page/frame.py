"""The document around a page: head, search, sign of life, tiles and tables, and the policy that a server must send."""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from coil.page.markup import Content, Html, tag
from coil.page.query import LENGTH, Query
from coil.page.script import SCRIPT
from coil.page.style import STYLE
from coil.page.wording import age_text, clock_text, count_text, stamp

PATH = "/ip-manager"

_MARK = "M6 17a11 11 0 1 1 22 0a9 9 0 1 1-18 0a7 7 0 1 1 14 0a5 5 0 1 1-10 0a3 3 0 1 1 6 0"
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 34 34'%3E%3Cpath fill='none' "
    f"stroke='%230b7a6e' stroke-width='2.4' stroke-linecap='round' d='{_MARK}'/%3E%3C/svg%3E"
)


def _hash(text: str) -> str:
    return "'sha256-" + b64encode(sha256(text.encode()).digest()).decode() + "'"


POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_hash(STYLE)}",
        f"script-src {_hash(SCRIPT)}",
        "connect-src 'self'",
        "img-src data:",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""The Content-Security-Policy under which a page works: this style, this script, its own origin, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands around the sections of a page. `hint` is in the empty search field."""

    subject: str
    about: str
    hint: str
    at: datetime
    query: Query
    found: str


def render_page(frame: Frame, *sections: Html) -> str:
    """The whole document."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{frame.subject} · Coil"),
        tag("link", rel="icon", href=_ICON),
        tag("style", Html(STYLE)),
    )
    body = tag(
        "body",
        _render_top(frame),
        _render_search(frame),
        tag("main", sections),
        tag("p", "The same as JSON: ", tag("code", f"curl -H 'Accept: application/json' …{PATH}"), class_="foot"),
        tag("script", Html(SCRIPT)),
        class_="searching" if frame.query else None,
    )
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def _render_top(frame: Frame) -> Html:
    mark = tag(
        "svg",
        tag("path", d=_MARK, fill="none", stroke="currentColor", stroke_width=2.2, stroke_linecap="round"),
        class_="mark",
        viewBox="0 0 34 34",
        aria_hidden="true",
    )
    # Only the word is announced, not the time that changes with every look.
    live: Content = (
        tag("b", "live", role="status"),
        tag("time", clock_text(frame.at).partition(" ")[2], datetime=stamp(frame.at), title=clock_text(frame.at)),
    )
    name = tag("div", tag("h1", frame.subject), tag("p", frame.about))
    return tag("header", mark, name, tag("p", live, class_="live"), class_="top")


def _render_search(frame: Frame) -> Html:
    box = tag(
        "input",
        type="search",
        name="q",
        value=frame.query.text,
        placeholder=frame.hint,
        aria_label=frame.hint,
        maxlength=LENGTH,
        autocomplete="off",
        spellcheck="false",
    )
    label = tag("label", box, tag("kbd", "/", title="press / to search", aria_hidden="true"))
    return tag("form", label, tag("output", frame.found), class_="search", role="search", action=PATH)


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
