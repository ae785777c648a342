"""What a block of commands says, word by word. Pure.

As much of the shell as the pages use: words and quotes, continued lines, comments, `;`, `&&`, pipes, redirections,
variables, and documents that follow a command (`<<END`). Anything else in a page is an error: it would be executed
without having been read.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_HERE: Final = re.compile(r"<<'?(?P<end>[A-Z]+)'?")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=.*")
_SEPARATORS: Final = frozenset({";", "&&", "||", "|", "&"})
_REDIRECTIONS: Final = frozenset({">", ">>", "<"})
_KEYWORDS: Final = frozenset(
    {"if", "then", "else", "fi", "for", "do", "done", "while", "until", "case", "esac", "{", "}"}
)


class CommandError(Exception):
    """The text is more than this module understands."""


@dataclass(frozen=True, slots=True)
class Command:
    """`words` begin with the program; variables in them are not replaced. `document` is what it reads, if given."""

    words: tuple[str, ...]
    document: str = ""

    @property
    def program(self) -> str:
        return self.words[0]

    def flags(self) -> list[str]:
        """Those that begin with two dashes, without values, up to a `--`."""
        words = self.words[: self.words.index("--")] if "--" in self.words else self.words
        return [word.partition("=")[0] for word in words[1:] if word.startswith("--")]

    def option_values(self, *names: str) -> Iterator[str]:
        """What is given to an option of these names: `--set a=1`, `--set=a=1`."""
        for position, word in enumerate(self.words):
            name, equals, value = word.partition("=")
            if name in names and equals:
                yield value
            elif word in names and position + 1 < len(self.words):
                yield self.words[position + 1]


def parse_commands(text: str) -> list[Command]:
    """The commands of a block, in order. Raises CommandError."""
    commands: list[Command] = []
    lines = iter(text.replace("\\\n", " ").splitlines())
    for line in lines:
        here = _HERE.search(line)
        document = "" if here is None else _document(lines, here["end"])
        found = list(_split(line if here is None else _HERE.sub("", line)))
        if document and found:
            found[-1] = Command(found[-1].words, document)
        commands += found
    return commands


def _document(lines: Iterator[str], end: str) -> str:
    body: list[str] = []
    for line in lines:
        if line == end:
            return "".join(f"{each}\n" for each in body)
        body.append(line)
    raise CommandError(f"no line {end} ends the document")


def _split(line: str) -> Iterator[Command]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError as error:
        raise CommandError(f"{line!r}: {error}") from None
    words: list[str] = []
    rest = iter([*tokens, ";"])
    for token in rest:
        if token in _SEPARATORS:
            if words:
                yield Command(tuple(words))
            words = []
        elif token in _REDIRECTIONS:
            next(rest)
        elif set(token) <= set("()<>|&;") or "$(" in token or "`" in token or (not words and token in _KEYWORDS):
            raise CommandError(f"{line!r}: {token} is not understood")
        elif words or _ASSIGNMENT.fullmatch(token) is None:
            words.append(token)
