"""The page of one node in a VPC: what is left, every interface as rows of its addresses, and a table of who has them.

A prefix is one row, as it has as many addresses as a row has cells; single addresses come after the prefixes. Bounded
as the page of a node with pools is: of an interface with more addresses than there are cells only those that are out
are drawn, and search reaches what is left out.
"""

from collections.abc import Collection, Iterator
from itertools import islice

from coil.page.block_drawing import PAGE_CELLS, SHORT_ID, WHOLE_BLOCK, counts_text
from coil.page.eni_document import EniAddressDocument, EniNodeDocument, InterfaceDocument
from coil.page.frame import Frame, render_page, render_since, render_table, render_tile, render_tiles
from coil.page.grid import Cell, Segment, render_bar, render_grid
from coil.page.markup import Content, Html, tag
from coil.page.node_document import AddressCounts, AddressState
from coil.page.query import IpAddress, Query, host_network
from coil.page.wording import clock_text, count_text, noun

TABLE_ROWS = 500

_Row = tuple[str, EniAddressDocument]


def render_eni_page(document: EniNodeDocument, query: Query) -> str:
    """The page; what `query` finds is pointed out among the cells, and the table shows only that."""
    rows = [(interface.id, used) for interface in document.interfaces for used in interface.used]
    rows += [("-", used) for used in document.lost]
    if query:
        rows = [(interface, used) for interface, used in rows if _is_hit(used, query)]
    drawing = _Drawing(query, {used.address for _, used in rows} if query else set())
    frame = Frame(
        subject=document.node,
        about="the addresses of this node's network interfaces, as its coild knows them",
        hint="Search by pod, namespace, address or container",
        at=document.at,
        query=query,
        found=f"{count_text(len(rows))} found" if query else "",
    )
    interfaces = tag(
        "section",
        tag("div", tag("h2", "Interfaces"), class_="head"),
        tag("div", map(drawing.render, document.interfaces), class_="blocks"),
        id="interfaces",
    )
    return render_page(frame, _render_summary(document), interfaces, _render_table(rows, document, query))


def _is_hit(used: EniAddressDocument, query: Query) -> bool:
    texts = [used.pod_text or "", used.container or "", str(used.address)]
    return query.matches(texts, [host_network(used.address)])


def _render_summary(document: EniNodeDocument) -> Html:
    counts = document.addresses
    tiles = [
        render_tile("allocated", counts.allocated, mark="allocated"),
        render_tile("cooling", counts.cooling, mark="cooling"),
        render_tile("free", counts.free, mark="free"),
        render_tile("withheld", counts.withheld, mark="withheld") if counts.withheld else None,
        render_tile("pods that wait", document.waiting) if document.waiting else None,
        render_tile("lost in EC2", len(document.lost)) if document.lost else None,
        render_tile("addresses", counts.total, note=f"of {noun(len(document.interfaces), 'interface')}"),
    ]
    shortage = None
    if document.shortage is not None:
        shortage = tag("p", tag("span", "no more to be had", class_="chip warn"), " ", document.shortage, class_="note")
    return tag("section", render_tiles(tiles), _render_counts(counts), shortage, id="summary")


def _render_counts(counts: AddressCounts) -> Html:
    segments = [
        Segment("allocated", counts.allocated),
        Segment("cooling", counts.cooling),
        Segment("withheld", counts.withheld),
    ]
    return render_bar(segments, total=counts.total, label=counts_text(counts))


class _Drawing:
    """One page's interfaces. `hits` are the addresses that the query has found."""

    def __init__(self, query: Query, hits: Collection[IpAddress]) -> None:
        self._query = query
        self._hits = hits
        self._left = PAGE_CELLS

    def render(self, interface: InterfaceDocument) -> Html:
        """The next one."""
        counts = interface.addresses
        chip = None if interface.up else tag("span", "link not up", class_="chip warn")
        share = tag("span", f"{count_text(counts.allocated)} of {count_text(counts.total)}", class_="right")
        about = [
            f"device {interface.device_number}",
            str(interface.primary),
            interface.subnet,
            interface.mac,
        ]
        return tag(
            "article",
            tag("div", tag("h3", interface.id), chip, share, class_="head"),
            tag("p", (tag("code", text) for text in about), class_="nets"),
            self._render_rows(interface),
            class_="block",
            id=f"interface-{interface.id}",
        )

    def _render_rows(self, interface: InterfaceDocument) -> Content:
        size = interface.addresses.total
        whole = size <= min(WHOLE_BLOCK, self._left)
        drawn = size if whole else min(len(interface.used), self._left)
        self._left -= drawn
        cells = self._all_cells(interface) if whole else map(self._used_cell, interface.used)
        grid = render_grid(islice(cells, drawn), label=f"{interface.id}: {counts_text(interface.addresses)}")
        if whole:
            return grid
        note = f"only {count_text(drawn)} of {noun(size, 'address', 'addresses')} drawn"
        return [grid, tag("p", note, class_="note")]

    def _all_cells(self, interface: InterfaceDocument) -> Iterator[Cell]:
        used = {entry.address: entry for entry in interface.used}
        for each in sorted(interface.ranges, key=lambda each: (each.network.prefixlen, each.network.network_address)):
            for address in each.network:
                entry = used.get(address)
                withheld = each.withdrawn or not interface.up
                yield self._rest_cell(address, withheld=withheld) if entry is None else self._used_cell(entry)

    def _rest_cell(self, address: IpAddress, *, withheld: bool) -> Cell:
        # An address that nobody has is found by itself only: its network would find every cell.
        asked = self._query.is_one_address and self._query.matches((), [host_network(address)])
        state = "withheld" if withheld else "free"
        return Cell(state, f"{address}\n{state}", hit=asked)

    def _used_cell(self, used: EniAddressDocument) -> Cell:
        lines = [str(used.address), used.pod_text or "", used.state.value + _moment_text(used)]
        return Cell(
            used.state.value,
            "\n".join(filter(None, lines)),
            find=str(used.address),
            hit=used.address in self._hits,
        )


def _moment_text(used: EniAddressDocument) -> str:
    if used.state is AddressState.COOLING:
        return f" until {clock_text(used.until)}" if used.until else ""
    return f" since {clock_text(used.since)}" if used.since else ""


def _render_table(rows: list[_Row], document: EniNodeDocument, query: Query) -> Html:
    caption = f"{count_text(len(rows))} allocated or cooling"
    if query:
        caption += f", searched for “{query.text}”"
    if len(rows) > TABLE_ROWS:
        caption += f"; these are the first {TABLE_ROWS}, search for the others"
    heads = ("Address", "Pod", "Namespace", "Container", "Interface", "Of", "State", "Since")
    lost = {used.address for used in document.lost}
    cells = (_render_row(interface, used, document, lost=used.address in lost) for interface, used in rows[:TABLE_ROWS])
    return tag("section", tag("h2", "Addresses"), render_table(heads, cells, caption=caption), id="addresses")


def _render_row(interface: str, used: EniAddressDocument, document: EniNodeDocument, *, lost: bool) -> list[Content]:
    is_out = used.state is AddressState.ALLOCATED
    unknown = tag("span", "unknown" if is_out else "-", class_="soft")
    container = tag("code", used.container[:SHORT_ID], title=used.container) if used.container else unknown
    state = tag("span", tag("i", class_=f"key {used.state.value}"), used.state.value, class_="state")
    return [
        tag("code", str(used.address)),
        used.pod or unknown,
        used.namespace or unknown,
        container,
        used.interface or unknown,
        tag("span", "lost in EC2", class_="chip bad") if lost else interface,
        state,
        render_since(used.since, document.at) if used.since else unknown,
    ]
