"""JSON for programs, HTML for browsers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.runtime.inspection import prefers_html

CHROMIUM = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        (CHROMIUM, True),
        ("text/html", True),
        ("TEXT/HTML; charset=utf-8", True),
        ("text/*", True),
        ("text/html;q=0.5, application/json;q=0.4", True),
        ("text/html, application/json", True),
        ("text/html;q=0.4, application/json;q=0.5", False),
        ("text/html;q=0.4, */*", False),
        ("text/html;q=0", False),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("image/png", False),
        ("text/html;q=many", False),
    ],
)
def test_who_gets_what(accept: str, html: bool) -> None:
    assert prefers_html(accept) is html


@given(st.text())
def test_nonsense_never_fails(accept: str) -> None:
    prefers_html(accept)
