"""The document of `kubectl coil ipam show` for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kubectl_coil.ipam.document import BlockDocument, IpamDocument, IpamPoolDocument, PodDocument
from kubectl_coil.output import make_table, printable

if TYPE_CHECKING:
    from rich.console import Console


def render_ipam(document: IpamDocument, console: "Console") -> None:
    """A table of each kind that the document has something of, and what is to be said about it."""
    sections = (
        (("pool", "subnets", "blocks", "addresses", "nodes"), [_pool_row(each) for each in document.pools]),
        (
            ("block", "pool", "node", "state", "ipv4", "ipv6", "pods", "occupied by"),
            [_block_row(each) for each in document.blocks],
        ),
        (("pod", "addresses", "node", "block", "since"), [_pod_row(each) for each in document.pods]),
    )
    shown = False
    for columns, rows in sections:
        if rows:
            if shown:
                console.print()
            console.print(make_table(*columns, rows=rows))
            shown = True
    if document.note:
        if shown:
            console.print()
        console.print(printable(f"{document.asked}: {document.note}" if document.asked else document.note))


def _pool_row(each: IpamPoolDocument) -> Sequence[str]:
    blocks, addresses = (f"{counts.used}/{counts.total}" for counts in (each.blocks, each.addresses))
    return each.name, " ".join(each.subnets), blocks, addresses, str(each.nodes)


def _block_row(each: BlockDocument) -> Sequence[str]:
    pods = "" if each.pods is None else str(each.pods)
    return each.name, each.pool, each.node, each.state, each.ipv4 or "", each.ipv6 or "", pods, each.occupied_by


def _pod_row(each: PodDocument) -> Sequence[str]:
    since = "" if each.since is None else each.since.isoformat(timespec="seconds")
    return f"{each.namespace}/{each.name}", " ".join(each.addresses), each.node, each.block, since
