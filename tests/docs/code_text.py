"""What the programs can say: every text in their code, read from the sources and not by importing them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ("services", "cni")
HOLE: Final = "…"
"""What stands for a value that is put in."""

_PLACEHOLDER = re.compile(r"\{\w*\}")
_BORDER = re.compile(rf"{HOLE}|(?<=[;:,.]) | \(")
_WORDY = 6


@cache
def texts() -> frozenset[str]:
    """Each constant, and each f-string with holes where its values go."""
    found: set[str] = set()
    for path in (path for source in SOURCES for path in (ROOT / source).rglob("*.py")):
        found |= set(_texts(ast.parse(path.read_text(encoding="utf-8"))))
    return frozenset(found)


def unsaid(line: str) -> list[str]:
    """The pieces of a message, between holes and punctuation, that no program says. A line of holes only is unsaid.

    Programs put messages together from several texts, hence pieces. Words of less than six letters prove nothing.
    """
    pieces = [piece.strip(" ;:,.()") for piece in _BORDER.split(line)]
    wordy = [piece for piece in pieces if sum(letter.isalpha() for letter in piece) >= _WORDY]
    return [piece for piece in wordy if not any(piece in text for text in texts())] if wordy else [line]


def is_said(word: str) -> bool:
    """Whether a program says exactly this, such as the reason of an Event, or one that ends so after a kind's name."""
    return word in texts() or any(
        text.startswith(HOLE) and text.count(HOLE) == 1 and len(text) > _WORDY and word.endswith(text[1:])
        for text in texts()
        if text[1:].isalpha()
    )


def _texts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _PLACEHOLDER.sub(HOLE, node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(_part(value) for value in node.values)


def _part(value: ast.expr) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else HOLE
