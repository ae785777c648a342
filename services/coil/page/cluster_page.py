"""The page of the cluster: pools, their blocks as grids, the nodes that have them, and who waits for one.

Bounded: grids by `pool_drawing`, and what is listed by `POOLS`, `SUBNETS` and `TABLE_ROWS`; search reaches what is left
out.
"""

from collections.abc import Mapping
from datetime import datetime

from coil.crd.address_pool import PoolFill, PoolObstacle
from coil.page.cluster_document import (
    BlockState,
    ClusterDocument,
    ConditionDocument,
    NodeDocument,
    PoolDocument,
    RequestDocument,
    RequestState,
)
from coil.page.frame import PATH, Frame, render_page, render_since, render_table, render_tile, render_tiles
from coil.page.grid import Segment, render_bar, render_meter
from coil.page.markup import Content, Html, tag
from coil.page.pool_drawing import PoolDrawing, find_blocks, render_sparkline
from coil.page.query import Query
from coil.page.vpc_section import render_vpc
from coil.page.wording import age_text, count_text, noun, percent_text, span_text

TABLE_ROWS = 500
POOLS = 100
SUBNETS = 16
HISTORY_POINTS = 120

_QUIET = "quiet"
_TONES: Mapping[str, str] = {
    PoolFill.HAS_ROOM: _QUIET,
    PoolFill.UNKNOWN: _QUIET,
    PoolFill.NEARLY_FULL: "warn",
    PoolFill.EXHAUSTED: _QUIET,
    PoolObstacle.INVALID: "bad",
    PoolObstacle.OVERLAPS: "bad",
    PoolObstacle.DELETING: "warn",
}
"""How serious the reasons of a pool's conditions are."""


def render_cluster_page(document: ClusterDocument, query: Query) -> str:
    """The page; what `query` finds is pointed out in the grids, and the tables show only that."""
    hits = find_blocks(query, document.pools)
    pools, nodes, requests = list(document.pools), list(document.nodes), list(document.requests)
    if query:
        near = {block.node for block in hits.values()}
        nodes = [node for node in nodes if node.name in near or query.matches([node.name])]
        requests = [item for item in requests if query.matches([item.name, item.node, item.pool])]
        if len(pools) > POOLS:
            touched = {pool for pool, _ in hits}
            pools = [pool for pool in pools if pool.name in touched or query.matches([pool.name])]
    drawing = PoolDrawing(hits, pools=min(len(pools), POOLS))
    role = "the leader" if document.leads else "a replica that stands by"
    frame = Frame(
        subject="Address pools",
        about=f"the cluster, as {document.replica} sees it, {role}",
        hint="Search by node, pool, block, address or network",
        at=document.at,
        query=query,
        found=f"{noun(len(hits), 'block')} found" if query else "",
    )
    waiting = [_render_requests(requests, document)] if requests else []
    sections = [_render_pool(pool, drawing) for pool in pools[:POOLS]]
    if len(pools) > POOLS:
        sections.append(tag("section", f"{len(pools) - POOLS} more pools: search for them", id="more-pools"))
    vpc = [] if document.interfaces is None else [render_vpc(document.interfaces, document, query)]
    summary = _render_summary(document)
    return render_page(frame, summary, *vpc, *waiting, *sections, _render_nodes(nodes, document, query))


def _render_summary(document: ClusterDocument) -> Html:
    states = [block.state for pool in document.pools for block in pool.placed]
    counts = {state: states.count(state) for state in BlockState}
    unusual = [
        render_tile(name, counts[state], mark=state.value) if counts[state] else None
        for state, name in (
            (BlockState.RESERVED, "reserved"),
            (BlockState.LEAVING, "leaving"),
            (BlockState.ORPHANED, "orphaned"),
        )
    ]
    tiles = [
        render_tile("blocks in use", counts[BlockState.USED], mark="used"),
        *unusual,
        render_tile("free", document.blocks.free, mark="free"),
        render_tile("pools", len(document.pools)),
        render_tile("nodes", sum(node.present for node in document.nodes)),
        render_tile("waiting", sum(item.state is RequestState.PENDING for item in document.requests)),
    ]
    segments = [Segment(state.value, counts[state]) for state in BlockState]
    label = f"{percent_text(document.blocks.used, document.blocks.total)} of all blocks are taken"
    bar = render_bar(segments, total=document.blocks.total, label=label)
    return tag("section", render_tiles(tiles), bar, id="summary")


def _render_pool(pool: PoolDocument, drawing: PoolDrawing) -> Html:
    chips = [_render_verdict(pool), *map(_render_condition, pool.conditions)]
    nets = [tag("code", " · ".join(filter(None, (net.ipv4, net.ipv6)))) for net in pool.subnets[:SUBNETS]]
    rest = f", and {len(pool.subnets) - SUBNETS} more" if len(pool.subnets) > SUBNETS else None
    size = f"blocks of {count_text(pool.block_size)}" if pool.block_size else ""
    head = tag("div", tag("h2", pool.name), chips, tag("span", size, class_="right"), class_="head")
    wrong = None if pool.gives_blocks else tag("p", tag("b", "Gives no blocks: "), pool.reason, class_="wrong")
    return tag(
        "section",
        head,
        tag("p", _separate(nets), rest, class_="soft nets"),
        wrong,
        _render_fill(pool),
        tag("div", drawing.render(pool), class_="block wide", id=f"grid-{pool.name}"),
        id=f"pool-{pool.name}",
    )


def _render_verdict(pool: PoolDocument) -> Html | None:
    if not pool.gives_blocks:
        return None  # why not is a sentence, not a chip
    return (
        tag("span", "gives blocks", class_="chip good") if pool.blocks.free else tag("span", "full", class_="chip bad")
    )


def _render_condition(condition: ConditionDocument) -> Html | None:
    """As a chip, unless it says what the verdict says already."""
    if condition.reason in _TONES:
        shown, tone = condition.reason, _TONES[condition.reason]
    else:
        shown, tone = f"{condition.type}: {condition.status}", ""
    if tone == _QUIET or (condition.type, condition.status) == ("Ready", "True"):
        return None
    return tag("span", shown, class_=f"chip {tone}".rstrip(), title=condition.message or None)


def _render_fill(pool: PoolDocument) -> Html:
    blocks = pool.blocks
    numbers = tag(
        "p",
        count_text(blocks.used),
        tag("small", f" of {noun(blocks.total, 'block')} · {percent_text(blocks.used, blocks.total)}"),
        class_="big",
    )
    addresses = pool.addresses
    small = tag(
        "p", f"{count_text(addresses.used)} of {count_text(addresses.total)} addresses handed out", class_="note"
    )
    level = tag("div", numbers, render_meter("used", blocks.used, blocks.total), small, class_="level")
    return tag("div", level, _render_past(pool), class_="fill")


def _render_past(pool: PoolDocument) -> Html:
    values = pool.history.used_blocks
    span = span_text(pool.history.interval_seconds * HISTORY_POINTS)
    label = f"blocks in use over the last {span}"
    if values:
        label += f": from {min(values)} to {max(values)}, now {values[-1]}"
    spark = render_sparkline(values, slots=HISTORY_POINTS, label=label)
    return tag("div", spark, tag("p", tag("span", f"{span} ago"), tag("span", "now")), class_="past")


def _render_requests(requests: list[RequestDocument], document: ClusterDocument) -> Html:
    caption = f"{count_text(len(requests))} without a block" + _cut(len(requests))
    rows = (_request_row(item, document) for item in requests[:TABLE_ROWS])
    table = render_table(("Request", "Node", "Pool", "State", "Why", "Since"), rows, caption=caption)
    return tag("section", tag("h2", "Block requests"), table, id="requests")


def _request_row(item: RequestDocument, document: ClusterDocument) -> list[Content]:
    mark = "warn" if item.state is RequestState.PENDING else "bad"
    return [
        item.name,
        _link(item.node),
        item.pool,
        tag("span", item.state.value, class_=f"chip {mark}"),
        item.reason,
        render_since(item.since, document.at) if item.since else None,
    ]


def _render_nodes(nodes: list[NodeDocument], document: ClusterDocument, query: Query) -> Html:
    most = max((sum(node.blocks.values()) for node in document.nodes), default=0)
    caption = noun(len(nodes), "node") + (f", searched for “{query.text}”" if query else "") + _cut(len(nodes))
    rows = (_node_row(node, most, document.at) for node in nodes[:TABLE_ROWS])
    table = render_table(("Node", "In the cluster", "Blocks", "By pool"), rows, caption=caption)
    return tag("section", tag("h2", "Nodes"), table, id="nodes")


def _node_row(node: NodeDocument, most: int, now: datetime) -> list[Content]:
    total = sum(node.blocks.values())
    present: Content = "yes"
    if not node.present:
        present = tag("span", "absent", class_="chip bad")
    elif node.unready_since is not None:
        present = tag("span", f"not ready for {age_text(node.unready_since, now)}", class_="chip warn")
    return [
        _link(node.name),
        present,
        tag("span", tag("b", count_text(total)), render_meter("used", total, most), class_="amount"),
        ", ".join(f"{pool} {count_text(number)}" for pool, number in node.blocks.items()),
    ]


def _link(node: str) -> Content:
    """Works without the script as well."""
    return tag("a", node, href=f"{PATH}?q={node}", data_find=node) if node else None


def _cut(number: int) -> str:
    return f"; these are the first {TABLE_ROWS}, search for the others" if number > TABLE_ROWS else ""


def _separate(parts: list[Html]) -> list[Content]:
    return [[", " if place else None, part] for place, part in enumerate(parts)]
