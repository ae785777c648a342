"""The page of one node: what is left, every block as a grid of its addresses, and a table of who has them.

Bounded whatever the node holds, by `block_drawing` and by `TABLE_ROWS`; search reaches what is left out.
"""

from collections.abc import Iterable

from coil.page.block_drawing import SHORT_ID, BlockDrawing, counts_text
from coil.page.frame import Frame, render_page, render_since, render_table, render_tile, render_tiles
from coil.page.grid import Segment, render_bar
from coil.page.markup import Content, Html, tag
from coil.page.node_document import (
    AddressCounts,
    AddressDocument,
    AddressState,
    BlockDocument,
    NodeDocument,
    PoolDocument,
)
from coil.page.query import Query, host_network
from coil.page.wording import count_text, noun

TABLE_ROWS = 500
COLUMNS = 3
"""Blocks that stand in a row of a wide window; see `style`."""

_Row = tuple[BlockDocument, AddressDocument]


def render_node_page(document: NodeDocument, query: Query) -> str:
    """The page; what `query` finds is pointed out in the grids, and the table shows only that."""
    rows = [(block, used) for pool in document.pools for block in pool.blocks for used in block.used]
    if query:
        rows = [(block, used) for block, used in rows if _is_hit(used, query)]
    hits = {(block.name, used.slot) for block, used in rows} if query else set()
    drawing = BlockDrawing(query, hits)
    frame = Frame(
        subject=document.node,
        about="the addresses of this node, as its coild knows them",
        hint="Search by pod, namespace, address or container",
        at=document.at,
        query=query,
        found=f"{count_text(len(rows))} found" if query else "",
    )
    pools = [_render_pool(pool, drawing) for pool in document.pools]
    return render_page(frame, _render_summary(document), *pools, _render_table(rows, document, query))


def _is_hit(used: AddressDocument, query: Query) -> bool:
    networks = [host_network(address) for address in (used.ipv4, used.ipv6) if address is not None]
    return query.matches([used.pod_text or "", used.container or "", *used.texts], networks)


def _render_summary(document: NodeDocument) -> Html:
    counts = document.addresses
    place = f"{noun(sum(len(pool.blocks) for pool in document.pools), 'block')}, {noun(len(document.pools), 'pool')}"
    tiles = [
        render_tile("allocated", counts.allocated, mark="allocated"),
        render_tile("cooling", counts.cooling, mark="cooling"),
        render_tile("free", counts.free, mark="free"),
        render_tile("reserved or draining", counts.withheld, mark="withheld") if counts.withheld else None,
        render_tile("addresses", counts.total, note=f"in {place}"),
    ]
    return tag("section", render_tiles(tiles), _render_counts(counts), id="summary")


def _render_counts(counts: AddressCounts) -> Html:
    segments = [
        Segment("allocated", counts.allocated),
        Segment("cooling", counts.cooling),
        Segment("withheld", counts.withheld),
    ]
    return render_bar(segments, total=counts.total, label=counts_text(counts))


def _render_pool(pool: PoolDocument, drawing: BlockDrawing) -> Html:
    head = (
        tag("h2", pool.name),
        tag("span", noun(len(pool.blocks), "block"), class_="soft"),
        tag("span", counts_text(pool.addresses), class_="right"),
    )
    blocks = tag("div", map(drawing.render, pool.blocks), class_="blocks")
    # Pools of few blocks stand side by side.
    span = f"span{len(pool.blocks)}" if 0 < len(pool.blocks) < COLUMNS else None
    return tag(
        "section",
        tag("div", head, class_="head"),
        _render_counts(pool.addresses),
        blocks,
        class_=span,
        id=f"pool-{pool.name}",
    )


def _render_table(rows: list[_Row], document: NodeDocument, query: Query) -> Html:
    caption = f"{count_text(len(rows))} allocated or cooling"
    if query:
        caption += f", searched for “{query.text}”"
    if len(rows) > TABLE_ROWS:
        caption += f"; these are the first {TABLE_ROWS}, search for the others"
    heads = ("Address", "Pod", "Namespace", "Container", "Interface", "Block", "State", "Since")
    cells = (_render_row(block, used, document) for block, used in rows[:TABLE_ROWS])
    return tag("section", tag("h2", "Addresses"), render_table(heads, cells, caption=caption), id="addresses")


def _render_row(block: BlockDocument, used: AddressDocument, document: NodeDocument) -> list[Content]:
    is_out = used.state is AddressState.ALLOCATED
    unknown = tag("span", "unknown" if is_out else "-", class_="soft")
    container = tag("code", used.container[:SHORT_ID], title=used.container) if used.container else unknown
    return [
        _stack(tag("code", address) for address in used.texts),
        used.pod or unknown,
        used.namespace or unknown,
        container,
        used.interface or unknown,
        block.name,
        tag("span", tag("i", class_=f"key {used.state.value}"), used.state.value, class_="state"),
        render_since(used.since, document.at) if used.since else unknown,
    ]


def _stack(lines: Iterable[Html]) -> list[Html]:
    return [tag("div", line) for line in lines]
