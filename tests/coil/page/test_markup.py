"""Escaping by construction: whatever is text stays text."""

from html.parser import HTMLParser

import pytest
from hypothesis import given

from coil.page.markup import Html, join, tag, text
from tests.coil.page.html_tree import parse_html
from tests.coil.page.scene import TEXTS


class _TextParser(HTMLParser):
    """All that a parser sees besides text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.markup: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.markup.append(tag)

    def handle_comment(self, data: str) -> None:
        self.markup.append(data)

    def handle_decl(self, decl: str) -> None:
        self.markup.append(decl)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(TEXTS)
def test_text_is_never_markup(value: str) -> None:
    parser = _TextParser()
    parser.feed(text(value))
    parser.close()
    assert parser.markup == []
    assert len(parser.text) == len(value)
    assert not {"\x00", "\x1b", "\u202e"} & set(parser.text)


@given(TEXTS)
def test_an_attribute_holds_its_text(value: str) -> None:
    root = parse_html(tag("i", data_tip=value, class_="free"))
    assert root.one("i").attributes == {"data-tip": parse_html(text(value)).text, "class": "free"}
    assert root.text == ""


def test_what_is_printable_stays_as_it_is() -> None:
    assert parse_html(text("naïve · <b> & 'c'\n\"d\"")).text == "naïve · <b> & 'c'\n\"d\""


@pytest.mark.parametrize("letter", ["\x00", "\x07", "\x7f", "\u200b", "\u202e", "\ud800"])
def test_what_hides_or_reorders_is_replaced(letter: str) -> None:
    assert text(f"a{letter}b") == "a\ufffdb"


def test_elements() -> None:
    assert tag("p", "a < b", tag("b", "c"), None, ["d", ("e",)]) == "<p>a &lt; b<b>c</b>de</p>"
    assert tag("input", name="q", required=True, disabled=False, value=None) == '<input name="q" required>'
    assert join(Html("<br>")) == "<br>"
    assert join(None) == ""


def test_a_newline_in_an_attribute_survives() -> None:
    assert tag("i", data_tip="a\nb") == '<i data-tip="a&#10;b"></i>'
