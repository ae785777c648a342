"""HTML by construction: whatever is not `Html` is text, and text is escaped when it is put into an element.

The bottom of this room. Names of pods come from users, and some of what a page shows from whoever speaks to the
plugin's socket, so no other module here joins strings into markup, and nobody can forget to escape.
"""

import unicodedata
from collections.abc import Iterable
from html import escape

_VOID = frozenset({"input", "link", "meta"})
_REPLACED = frozenset({"Cc", "Cf", "Cs"})
"""Control characters, invisible ones that reorder or hide text, and lone surrogates."""

_KEPT = "\n"


class Html(str):
    """Markup, complete and balanced."""

    __slots__ = ()


Content = str | Iterable["Content"] | None
Attribute = str | int | float | bool | None


def text(value: str) -> Html:
    """The markup that shows `value` literally; what cannot be shown appears as U+FFFD."""
    if not value.isprintable():
        value = "".join("\N{REPLACEMENT CHARACTER}" if _unprintable(letter) else letter for letter in value)
    return Html(escape(value))


def tag(element: str, /, *content: Content, **attributes: Attribute) -> Html:
    """One element. In names of attributes `_` stands for `-`, and one at the end is dropped (`class_`, `for_`).

    An attribute that is None or False is left out, one that is True stands without a value. Content may be nested.
    """
    opening = element + "".join(_attribute(key, value) for key, value in attributes.items())
    if element in _VOID:
        return Html(f"<{opening}>")
    return Html(f"<{opening}>{join(content)}</{element}>")


def join(content: Content) -> Html:
    """Content as one piece of markup."""
    if content is None:
        return Html("")
    if isinstance(content, Html):
        return content
    if isinstance(content, str):
        return text(content)
    return Html("".join(map(join, content)))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    # A newline is written as a reference: some parsers make a space of it.
    return f' {name}="{text(str(value)).replace(_KEPT, "&#10;")}"'


def _unprintable(letter: str) -> bool:
    return letter != _KEPT and unicodedata.category(letter) in _REPLACED
