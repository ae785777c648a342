"""How the demo talks: a line for each part with the time that it took, tables, and the error that ends it."""

import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from integration.demo.inventory import render_table

T = TypeVar("T")


class DemoError(Exception):
    """Something that the demo shows did not hold; the message says what."""


def render_opening(title: str, *paragraphs: str) -> str:
    """The beginning of a part: what is going to be shown, and where."""
    filled = (textwrap.fill(paragraph, width=110, break_on_hyphens=False) for paragraph in paragraphs)
    return "\n\n".join([f"\n{title}\n{'─' * len(title)}", *filled]) + "\n"


def step(title: str, work: Callable[[], T]) -> T:
    """Do one part, saying what and how long it took."""
    print(f"·  {title} … ", end="", flush=True)
    began = time.monotonic()
    try:
        result = work()
    except BaseException:
        print("failed", flush=True)
        raise
    print(f"{time.monotonic() - began:.1f} s", flush=True)
    return result


@contextmanager
def logs_if_it_fails(logs: Callable[[], Iterable[tuple[str, str]]]) -> Iterator[None]:
    """Print the end of every program's log when the block fails, but not when it is interrupted."""
    try:
        yield
    except Exception:
        for name, text in logs():
            print(f"\n── {name} ──\n{text}", file=sys.stderr)
        raise


def print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table and an empty line."""
    print(render_table(header, rows), end="\n\n", flush=True)
