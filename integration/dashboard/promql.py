"""What a PromQL expression asks for: metrics, and labels of them. Not an evaluator, and no judge of the rest.

https://prometheus.io/docs/prometheus/latest/querying/basics/. Grafana's variables (`$pool`, `$__rate_interval`) may
stand in strings and in durations.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|\#[^\n]*)
  | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<range>\[[^\]]*\])
  | (?P<number>(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?(?:ms|[smhdwy])?)
  | (?P<word>[a-zA-Z_:][a-zA-Z0-9_:]*)
  | (?P<operator>=~|!~|!=|==|<=|>=|[-+*/%^(){},=<>@])
    """,
    re.VERBOSE,
)
_AGGREGATIONS = frozenset(
    {"sum", "min", "max", "avg", "group", "count", "bottomk", "topk", "quantile", "stddev", "stdvar", "count_values"}
)
_LABEL_LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan"})
_MATCHERS = frozenset({"=", "!=", "=~", "!~"})


class PromqlError(ValueError):
    """The text is no expression that this module understands."""


@dataclass(frozen=True, slots=True)
class Query:
    """`selectors`: each metric with the labels that it is matched by. `grouped`: the labels of by, on and the like."""

    selectors: tuple[tuple[str, tuple[str, ...]], ...]
    grouped: frozenset[str]

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset(metric for metric, _ in self.selectors)


def parse_query(text: str) -> Query:
    """Raises PromqlError."""
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_tokenize(text), ("end", "")]
        self._at = 0

    def read(self) -> Query:
        selectors: list[tuple[str, tuple[str, ...]]] = []
        grouped: list[str] = []
        depth = 0
        while (token := self._next()) != ("end", ""):
            kind, word = token
            if kind == "operator":
                depth += (word == "(") - (word == ")")
                # A comma stands between arguments, braces after a metric.
                if word in "{}" or depth < (word == ","):
                    raise self._error(f"unexpected {word}")
            elif kind != "word" or word.lower() in _WORDS:
                continue
            elif word in _LABEL_LISTS:
                grouped += self._labels() if self._peek() == "(" else []
            elif word not in _AGGREGATIONS and self._peek() != "(":
                selectors.append((word, self._matchers() if self._peek() == "{" else ()))
        if depth:
            raise self._error("unbalanced parentheses")
        return Query(tuple(selectors), frozenset(grouped))

    def _labels(self) -> list[str]:
        """`(a, b)`"""
        found = []
        self._expect("(")
        while self._peek() != ")":
            found.append(self._expect_kind("word"))
            if self._peek() != ")":
                self._expect(",")
        self._expect(")")
        return found

    def _matchers(self) -> tuple[str, ...]:
        """`{a="b", c!~"d"}`"""
        found = []
        self._expect("{")
        while self._peek() != "}":
            found.append(self._expect_kind("word"))
            kind, operator = self._next()
            if kind != "operator" or operator not in _MATCHERS:
                raise self._error(f"{found[-1]} is not matched with anything")
            self._expect_kind("string")
            if self._peek() != "}":
                self._expect(",")
        self._expect("}")
        return tuple(found)

    def _peek(self) -> str:
        return self._tokens[self._at][1]

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _expect(self, word: str) -> None:
        if (found := self._next()[1]) != word:
            raise self._error(f"{word} expected, not {found or 'the end'}")

    def _expect_kind(self, kind: str) -> str:
        found, word = self._next()
        if found != kind:
            raise self._error(f"{kind} expected, not {word or 'the end'}")
        return word

    def _error(self, what: str) -> PromqlError:
        return PromqlError(f"{what} in: {self._text}")


def _tokenize(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise PromqlError(f"unreadable from {text[at:]!r} on")
        at = match.end()
        if match.lastgroup is not None and match.lastgroup != "space":
            yield match.lastgroup, match[0]
