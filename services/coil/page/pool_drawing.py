"""The pools of the cluster's page, drawn as grids of their blocks, within a budget of cells.

Blocks are given out from the lowest index, so a grid that ends a little after the highest one in use shows all there
is to see, and the free rest is a number: a pool may have 2^59 blocks. When even that takes more cells than the pool may
have, each cell stands for a run of blocks.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence

from coil.page.cluster_document import BlockState, PlacedBlock, PoolDocument
from coil.page.grid import Cell, render_grid
from coil.page.markup import Content, Html, tag
from coil.page.query import Query, parse_networks
from coil.page.wording import count_text, noun

PAGE_CELLS = 8192
POOL_CELLS = 512
SPARE_CELLS = 32
_TIP_LINES = 6
_ORDER = (BlockState.ORPHANED, BlockState.LEAVING, BlockState.RESERVED, BlockState.USED)
"""What a cell of several blocks shows: the first of these that one of them is."""


BlockKey = tuple[str, str]
"""A block by its pool and name."""


def find_blocks(query: Query, pools: Iterable[PoolDocument]) -> dict[BlockKey, PlacedBlock]:
    """What a search points out. There may be very many blocks: networks are parsed only where they can matter."""
    found: dict[BlockKey, PlacedBlock] = {}
    for pool in pools if query else ():
        subnets = [network for entry in pool.subnets for network in parse_networks(entry.ipv4, entry.ipv6)]
        if subnets and not query.meets(subnets):
            continue
        for block in pool.placed:
            networks = parse_networks(block.ipv4, block.ipv6) if query.networks else ()
            if query.matches([pool.name, block.name, block.node, *block.texts], networks):
                found[pool.name, block.name] = block
    return found


class PoolDrawing:
    """One page's pools, `pools` in number; `hits` are the blocks that a search has found."""

    def __init__(self, hits: Container[BlockKey], *, pools: int) -> None:
        self._hits = hits
        self._cells = min(POOL_CELLS, PAGE_CELLS // max(pools, 1))

    def render(self, pool: PoolDocument) -> Content:
        """The grid of a pool, and what it leaves out."""
        highest = max((block.index for block in pool.placed), default=-1)
        end = max(min(highest + 1 + SPARE_CELLS, pool.blocks.total), highest + 1)
        run = max(-(-end // self._cells), 1)
        places: dict[int, list[PlacedBlock]] = defaultdict(list)
        for block in pool.placed:
            places[block.index // run].append(block)
        cells = [self._draw(pool, places.get(place, []), place, run) for place in range(-(-end // run))]
        notes = [f"each cell is {count_text(run)} blocks"] if run > 1 else []
        if (rest := pool.blocks.total - end) > 0:
            notes.append(f"{noun(rest, 'more block')} beyond, all free")
        label = f"{pool.name}: {count_text(pool.blocks.used)} of {noun(pool.blocks.total, 'block')} in use"
        return [render_grid(cells, label=label), tag("p", "; ".join(notes), class_="note") if notes else None]

    def _draw(self, pool: PoolDocument, blocks: list[PlacedBlock], place: int, run: int) -> Cell:
        if not blocks:
            first = place * run
            return Cell("free", f"{pool.name}-{first}" + (f" to {first + run - 1}" if run > 1 else "") + "\nfree")
        state = next(state for state in _ORDER if any(block.state is state for block in blocks))
        mark = "some" if state is BlockState.USED and len(blocks) < run else state.value
        hit = any((pool.name, block.name) in self._hits for block in blocks)
        return Cell(mark, "\n".join(_tip(blocks, run)), find=blocks[0].node if run == 1 else "", hit=hit)


def _tip(blocks: list[PlacedBlock], run: int) -> list[str]:
    if run == 1:
        block = blocks[0]
        return [block.name, *block.texts, f"{block.state.value}, {block.node or 'of no node'}"]
    lines = [f"{count_text(len(blocks))} of {count_text(run)} in use"]
    lines += [f"{block.name}  {block.node}" for block in blocks[:_TIP_LINES]]
    return [*lines, "…"] if len(blocks) > _TIP_LINES else lines


WIDTH = 240
HEIGHT = 44
_MARGIN = 3.0


def render_sparkline(values: Sequence[int], *, slots: int, label: str) -> Html:
    """The values from the left edge's past to now at the right edge, where `slots` of them would fill the width.

    The curve stands on zero, and its highest value near the top: it shows change. How much of the whole that is, the
    bar beside it shows.
    """
    shown = values[-slots:]
    parts: list[Html] = [tag("path", class_="base", d=f"M0 {HEIGHT - _MARGIN}H{WIDTH}")]
    if shown:
        points = _place(shown, slots)
        line = " ".join(f"{x:.1f} {y:.1f}" for x, y in points)
        floor = HEIGHT - _MARGIN
        parts.append(tag("path", class_="under", d=f"M{points[0][0]:.1f} {floor}L{line} {points[-1][0]:.1f} {floor}Z"))
        parts.append(tag("path", class_="curve", d=f"M{line}"))
        parts.append(tag("circle", class_="now", cx=f"{points[-1][0]:.1f}", cy=f"{points[-1][1]:.1f}", r=2.6))
    return tag("svg", parts, class_="spark", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=label)


def _place(values: Sequence[int], slots: int) -> list[tuple[float, float]]:
    step = (WIDTH - 2 * _MARGIN) / max(slots - 1, 1)
    top = max(*values, 1)
    height = HEIGHT - 2 * _MARGIN
    last = len(values) - 1
    return [
        (WIDTH - _MARGIN - (last - place) * step, HEIGHT - _MARGIN - height * value / top)
        for place, value in enumerate(values)
    ]
