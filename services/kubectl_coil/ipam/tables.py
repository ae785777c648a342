"""The document of `kubectl coil ipam show` for people."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from coil.runtime.terminal import printable
from kubectl_coil.ipam.document import (
    BlockDocument,
    CheckDocument,
    IpamDocument,
    IpamPoolDocument,
    LedgerEntryDocument,
    PodDocument,
)
from kubectl_coil.output import make_table

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
        (("pod", "addresses", "node", "block", "created"), [_pod_row(each) for each in document.pods]),
        (
            ("addresses", "block", "state", "held by", "since", "before", "until"),
            [_ledger_row(each) for each in document.ledger or ()],
        ),
    )
    shown = False
    for columns, rows in sections:
        if rows:
            if shown:
                console.print()
            console.print(make_table(*columns, rows=rows))
            shown = True
    about = f"{document.asked}: " if document.asked else ""
    for remark in ([f"{about}{document.note}"] if document.note else []) + list(document.troubles):
        if shown:
            console.print()
        console.print(printable(remark))
        shown = True


def render_check(document: CheckDocument, console: "Console") -> None:
    """What was compared, then a table of the findings, and what could not be judged."""
    nodes = f"{document.nodes} node{'' if document.nodes == 1 else 's'}"
    if document.findings:
        plural = "" if len(document.findings) == 1 else "s"
        console.print(f"{len(document.findings)} finding{plural}, by the objects and {nodes}")
        console.print()
        rows = [(each.kind, each.subject, each.message, each.remedy) for each in document.findings]
        console.print(make_table("finding", "about", "message", "what to do", rows=rows))
    else:
        but = ", but not everything could be judged" if document.troubles else ""
        console.print(f"Nothing is wrong, by the objects and {nodes}{but}")
    for trouble in document.troubles:
        console.print()
        console.print(printable(trouble))


def _pool_row(each: IpamPoolDocument) -> Sequence[str]:
    blocks, addresses = (f"{counts.used}/{counts.total}" for counts in (each.blocks, each.addresses))
    return each.name, " ".join(each.subnets), blocks, addresses, str(each.nodes)


def _block_row(each: BlockDocument) -> Sequence[str]:
    pods = "" if each.pods is None else str(each.pods)
    return each.name, each.pool, each.node, each.state, each.ipv4 or "", each.ipv6 or "", pods, each.occupied_by


def _pod_row(each: PodDocument) -> Sequence[str]:
    return f"{each.namespace}/{each.name}", " ".join(each.addresses), each.node, each.block, _moment(each.created)


def _ledger_row(each: LedgerEntryDocument) -> Sequence[str]:
    before = ("", "") if each.before is None else (each.before.pod, _moment(each.before.until))
    return " ".join(each.addresses), each.block, each.state, each.pod or each.container, _moment(each.since), *before


def _moment(at: datetime | None) -> str:
    return "" if at is None else at.isoformat(timespec="seconds")
