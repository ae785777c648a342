"""The blocks of one node's page, drawn as grids of their addresses, within a budget of cells.

A block is drawn whole when it has at most `WHOLE_BLOCK` addresses and the page still has cells for it. Of any other one
only the addresses that are out are drawn, so a block may be a /64, and the page says how many are left out.
"""

from collections.abc import Collection, Iterator
from itertools import islice

from coil.page.grid import Cell, render_grid
from coil.page.markup import Content, Html, tag
from coil.page.node_document import AddressCounts, AddressDocument, AddressState, BlockDocument, BlockUse
from coil.page.query import Query, host_network
from coil.page.wording import clock_text, count_text, noun

WHOLE_BLOCK = 1024
PAGE_CELLS = 4096
SHORT_ID = 12
"""Letters of a container ID that are shown, as container runtimes do it."""

_CHIPS = {BlockUse.RESERVED: "held", BlockUse.DRAINING: "warn", BlockUse.OCCUPIED: "bad"}


class BlockDrawing:
    """One page's blocks. `hits` are the entries of `used` that the query has found, by block and slot."""

    def __init__(self, query: Query, hits: Collection[tuple[str, int]]) -> None:
        self._query = query
        self._hits = hits
        self._left = PAGE_CELLS

    def render(self, block: BlockDocument) -> Html:
        """The next block."""
        counts = block.addresses
        chip = tag("span", block.use.value, class_=f"chip {_CHIPS[block.use]}") if block.use in _CHIPS else None
        share = tag("span", f"{count_text(counts.allocated)} of {count_text(counts.total)}", class_="right")
        networks = [tag("code", str(network)) for network in (block.ipv4, block.ipv6) if network is not None]
        return tag(
            "article",
            tag("div", tag("h3", block.name), chip, share, class_="head"),
            tag("p", networks, class_="nets"),
            self._render_grid(block),
            class_="block",
            id=f"block-{block.name}",
        )

    def _render_grid(self, block: BlockDocument) -> Content:
        size = block.addresses.total
        whole = size <= min(WHOLE_BLOCK, self._left)
        drawn = size if whole else min(len(block.used), self._left)
        self._left -= drawn
        cells = self._all_cells(block) if whole else (self._used_cell(block, used) for used in block.used)
        grid = render_grid(islice(cells, drawn), label=f"{block.name}: {counts_text(block.addresses)}")
        if whole:
            return grid
        note = f"only {count_text(drawn)} of {noun(size, 'address', 'addresses')} drawn"
        return [grid, tag("p", note, class_="note")]

    def _all_cells(self, block: BlockDocument) -> Iterator[Cell]:
        used = {entry.slot: entry for entry in block.used}
        for slot in range(block.addresses.total):
            entry = used.get(slot)
            yield self._rest_cell(block, slot) if entry is None else self._used_cell(block, entry)

    def _rest_cell(self, block: BlockDocument, slot: int) -> Cell:
        addresses = [network[slot] for network in (block.ipv4, block.ipv6) if network is not None]
        is_free = block.use is BlockUse.OPEN
        # An address that nobody has is found by itself only: its network would find every cell.
        asked = self._query.is_one_address and self._query.matches((), map(host_network, addresses))
        tip = "\n".join([*map(str, addresses), "free" if is_free else block.use.value])
        return Cell("free" if is_free else "withheld", tip, hit=asked)

    def _used_cell(self, block: BlockDocument, used: AddressDocument) -> Cell:
        addresses = used.texts
        since = f" since {clock_text(used.since)}" if used.since and used.state is AddressState.ALLOCATED else ""
        lines = [*addresses, used.pod_text or "", used.state.value + since]
        hit = (block.name, used.slot) in self._hits
        return Cell(used.state.value, "\n".join(filter(None, lines)), find=addresses[0] if addresses else "", hit=hit)


def counts_text(counts: AddressCounts) -> str:
    """`27 allocated, 1 cooling, 4 free`."""
    parts = [f"{count_text(counts.allocated)} allocated"]
    if counts.cooling:
        parts.append(f"{count_text(counts.cooling)} cooling")
    parts.append(f"{count_text(counts.free)} free")
    return ", ".join(parts)
