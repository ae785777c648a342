"""The document around a page: head, search, sign of life, and the policy that a server must send with it."""

from base64 import b64encode
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from coil.page.markup import Content, Html, tag
from coil.page.query import LENGTH, Query
from coil.page.script import SCRIPT
from coil.page.style import STYLE
from coil.page.wording import clock_text, stamp

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
