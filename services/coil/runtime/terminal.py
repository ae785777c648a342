"""Texts of others on a person's terminal."""


def printable(text: str) -> str:
    """The text on one line, without characters that a terminal would obey."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(text.split()))
