"""The message of a condition, from several sentences. Pure."""

from collections.abc import Sequence
from typing import Final

LONGEST_MESSAGE: Final = 1024
"""Characters."""


def fit_sentences(sentences: Sequence[str]) -> str:
    """As a message; those that do not fit are counted."""
    for count in range(len(sentences), 0, -1):
        more = [f"and {len(sentences) - count} more"] if count < len(sentences) else []
        text = "; ".join([*sentences[:count], *more])
        if len(text) <= LONGEST_MESSAGE:
            return text
    return sentences[0][:LONGEST_MESSAGE]
