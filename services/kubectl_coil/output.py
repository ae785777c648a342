"""How an answer is printed: a document as JSON or YAML, or tables for people.

Without a terminal, or with NO_COLOR, nothing is coloured, and no line is cut.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from coil.page.document import Document, render_json
from coil.runtime.terminal import printable
from kubectl_coil.options import Output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PLAIN_WIDTH = 10_000
"""Columns where nobody reads lines: what is piped into another program is not to be wrapped."""


def print_document(document: Document, output: Output, render: Callable[["Console"], None]) -> None:
    """In the form that was asked for; `render` prints the tables."""
    match output:
        case Output.JSON:
            sys.stdout.write(render_json(document))
        case Output.YAML:
            import msgspec
            import yaml

            plain = msgspec.to_builtins(document, enc_hook=str)
            yaml.safe_dump(plain, sys.stdout, sort_keys=False, allow_unicode=True)
        case Output.TABLE:
            render(make_console())
    sys.stdout.flush()


def make_console() -> "Console":
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(
        highlight=False, markup=False, emoji=False, soft_wrap=not terminal, width=None if terminal else PLAIN_WIDTH
    )


def make_table(*columns: str, rows: Iterable[Sequence[str]]) -> "Table":
    """As kubectl prints one: no lines, headings in capitals, three spaces between columns."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.upper(), overflow="fold")
    for row in rows:
        # Text, so that nothing in a name or message is taken for markup, and no control character reaches the terminal.
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
