"""The document of `kubectl coil trace` for people."""

from typing import TYPE_CHECKING

from coil.runtime.terminal import printable
from kubectl_coil.output import make_table
from kubectl_coil.trace.document import TraceDocument, Verdict

if TYPE_CHECKING:
    from rich.console import Console


def render_trace(document: TraceDocument, console: "Console") -> None:
    """The hops, how it ends, and what may change the answer."""
    if document.hops:
        rows = [(str(number), each.at, each.action, each.by) for number, each in enumerate(document.hops, start=1)]
        console.print(make_table("", "at", "action", "by", rows=rows))
        console.print()
    if document.verdict is Verdict.DELIVERED:
        ending = f"Delivered: {document.destination} sees {document.source_seen} as source."
    else:
        ending = f"{document.verdict.value.capitalize()}: {document.reason}."
    console.print(printable(ending))
    if document.replies:
        console.print(printable(f"Replies go {document.replies}."))
    for doubt in document.doubts:
        console.print(printable(f"Not followed: {doubt}."))
