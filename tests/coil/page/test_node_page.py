"""The page of a node, as an independent parser sees it."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings

from coil.page.block_drawing import PAGE_CELLS, WHOLE_BLOCK
from coil.page.document import render_json
from coil.page.frame import POLICY
from coil.page.node_document import NodeDocument
from coil.page.node_page import TABLE_ROWS, render_node_page
from coil.page.query import parse_query
from tests.coil.page.html_tree import Element, parse_html
from tests.coil.page.scene import TEXTS, cooling, foreign_nodes, make_block, make_node, pod

NODE = make_node(
    make_block("default-0", pod(0, "web-1"), pod(1, "db-1", namespace="lab"), cooling(3), ipv4="10.1.0.0/29"),
    make_block("default-4", pod(2, "web-2"), ipv4="10.1.0.32/29", use="draining"),
    make_block("six-1", ipv6="fd00::8/125", use="reserved"),
)

HUGE = "1.8\N{MULTIPLICATION SIGN}10¹⁹"
"""2^64."""


def page(node: NodeDocument = NODE, query: str = "") -> Element:
    return parse_html(render_node_page(node, parse_query(query)))


def marks(root: Element, block: str) -> list[str]:
    """The first class of each cell, which is its state."""
    cells = root.by_id(f"block-{block}").one("div", "grid").all("i")
    return [(cell.attributes["class"] or "").split()[0] for cell in cells]


def rows(root: Element) -> list[list[str]]:
    body = root.by_id("addresses").one("tbody")
    return [[cell.text for cell in row.children if isinstance(cell, Element)] for row in body.all("tr")]


def test_each_address_is_a_cell_in_its_state() -> None:
    root = page()
    assert marks(root, "default-0") == ["allocated", "allocated", "free", "cooling", *["free"] * 4]
    assert marks(root, "default-4") == ["withheld", "withheld", "allocated", *["withheld"] * 5]
    assert marks(root, "six-1") == ["withheld"] * 8
    assert [chip.text for chip in root.all("span", "chip")] == ["draining", "reserved"]


def test_a_cell_says_what_it_is() -> None:
    cells = page().by_id("block-default-0").all("i")
    assert cells[0].attributes["data-tip"] == "10.1.0.0\napps/web-1\nallocated since 2030-01-01 11:58:30 UTC"
    assert cells[0].attributes["data-find"] == "10.1.0.0"
    assert cells[2].attributes["data-tip"] == "10.1.0.2\nfree"
    assert cells[3].attributes["data-tip"] == "10.1.0.3\ncooling"


def test_a_dual_stack_cell_tells_both_addresses() -> None:
    root = page(make_node(make_block("dual-0", pod(1, "web"), ipv4="10.1.0.0/31", ipv6="fd00::/127")))
    assert str(root.by_id("block-dual-0").all("i")[1].attributes["data-tip"]).startswith(
        "10.1.0.1\nfd00::1\napps/web\n"
    )
    assert rows(root)[0][0] == "10.1.0.1fd00::1"


def test_the_table_says_it_in_words() -> None:
    shown = rows(page())
    assert shown[0] == ["10.1.0.0", "web-1", "apps", "000000000000", "eth0", "default-0", "allocated", "1 min"]
    assert shown[2] == ["10.1.0.3", "-", "-", "-", "-", "default-0", "cooling", "-"]
    assert len(shown) == 4


def test_what_nobody_noted_is_unknown() -> None:
    root = page(make_node(make_block("default-0", {"slot": 0, "container": "c0ffee"}, ipv4="10.1.0.0/31")))
    assert rows(root)[0] == ["10.1.0.0", "unknown", "unknown", "c0ffee", "unknown", "default-0", "allocated", "unknown"]


def test_counts_are_told_of_the_node_and_of_each_pool() -> None:
    root = page()
    tiles = {tile.one("dt").text: tile.one("dd").text for tile in root.all("div", "tile")}
    assert tiles == {
        "allocated": "3",
        "cooling": "1",
        "free": "5",
        "reserved or draining": "15",
        "addresses": "24in 3 blocks, 2 pools",
    }
    heads = [section.all("div", "head")[0].text for section in root.all("section")[1:3]]
    assert heads == ["default2 blocks3 allocated, 1 cooling, 5 free", "six1 block0 allocated, 0 free"]
    assert root.by_id("block-default-0").one("div", "grid").attributes["aria-label"] == (
        "default-0: 2 allocated, 1 cooling, 5 free"
    )


@pytest.mark.parametrize(
    ("query", "pods"),
    [
        ("web", ["web-1", "web-2"]),
        ("lab", ["db-1"]),
        ("apps/web-2", ["web-2"]),
        ("10.1.0.34", ["web-2"]),
        ("10.1.0.0/29 web", ["web-1"]),
        ("0101010101", ["db-1"]),
        ("nothing", []),
    ],
)
def test_a_search_narrows_the_table_and_marks_cells(query: str, pods: list[str]) -> None:
    root = page(query=query)
    assert [row[1] for row in rows(root)] == pods
    hits = [str(cell.attributes["data-tip"]) for cell in root.all("i", "hit")]
    assert [tip.split("\n")[1].partition("/")[2] for tip in hits] == pods
    assert "searching" in root.one("body").classes
    assert root.one("output").text == f"{len(pods)} found"
    assert root.one("input").attributes["value"] == query


def test_without_a_search_nothing_is_marked() -> None:
    root = page()
    assert root.all("i", "hit") == []
    assert "searching" not in root.one("body").classes
    assert root.one("output").text == ""


def test_an_address_that_nobody_has_is_found_too() -> None:
    root = page(query="10.1.0.2")
    (cell,) = root.all("i", "hit")
    assert cell.attributes["data-tip"] == "10.1.0.2\nfree"
    assert rows(root) == []


@settings(max_examples=60)
@given(foreign_nodes(), TEXTS)
def test_whatever_the_names_are_the_page_is_the_same_markup(node: NodeDocument, query: str) -> None:
    root = page(node, query)
    kinds = {element.tag for element in root.walk()}
    assert kinds <= {element.tag for element in page().walk()}, "no element comes from a name"
    assert len(root.all("script")) == len(root.all("style")) == 1
    attributes = {name for element in root.walk() for name in element.attributes}
    assert not {name for name in attributes if name.startswith("on")} | attributes & {"src", "srcdoc", "style"}


def test_it_fetches_nothing() -> None:
    text = render_node_page(NODE, parse_query(""))
    root = parse_html(text)
    assert len(re.findall(r"https?:", text)) == 1, "the icon's namespace"
    assert str(root.one("link").attributes["href"]).startswith("data:image/svg+xml,")
    assert root.all("img") == root.all("iframe") == []
    assert "url(" not in root.one("style").text


def test_the_policy_allows_this_style_and_this_script_only() -> None:
    root = page()
    for element, directive in (("style", "style-src"), ("script", "script-src")):
        digest = b64encode(sha256(root.one(element).text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in POLICY.split("; ")
    assert POLICY.startswith("default-src 'none'; ")
    assert "unsafe" not in POLICY


def test_a_huge_block_shows_what_is_out() -> None:
    root = page(make_node(make_block("big-0", pod(5, "a"), pod(9, "b"), cooling(11), ipv6="fd00::/64")))
    assert marks(root, "big-0") == ["allocated", "allocated", "cooling"]
    assert root.by_id("block-big-0").one("p", "note").text == f"only 3 of {HUGE} addresses drawn"
    assert HUGE in root.by_id("summary").text


def test_a_page_has_bounds() -> None:
    pods = [pod(slot, "x" * 60, namespace="n" * 60) for slot in range(WHOLE_BLOCK)]
    full = make_block("full-0", *pods, ipv4="10.99.0.0/22")
    blocks = [make_block(f"many-{number}", ipv4=f"10.{number}.0.0/22") for number in range(8)]
    text = render_node_page(make_node(full, *blocks), parse_query(""))
    root = parse_html(text)
    assert sum(len(grid.all("i")) for grid in root.all("div", "grid")) == PAGE_CELLS
    assert len(rows(root)) == TABLE_ROWS
    assert root.by_id("addresses").one("caption").text == (
        "1,024 allocated or cooling; these are the first 500, search for the others"
    )
    assert len(text) < 1_000_000
    assert len(rows(page(make_node(full), "10.99.3.255"))) == 1, "a search reaches what the table leaves out"


def test_json_has_every_field_and_plain_numbers() -> None:
    document: dict[str, Any] = json.loads(render_json(NODE))
    assert document["node"] == "node1"
    assert document["at"] == "2030-01-01T12:00:00Z"
    assert document["addresses"] == {"total": 24, "allocated": 3, "cooling": 1, "free": 5, "withheld": 15}
    block = document["pools"][0]["blocks"][0]
    assert (block["name"], block["index"], block["ipv4"], block["ipv6"], block["use"]) == (
        "default-0",
        0,
        "10.1.0.0/29",
        None,
        "open",
    )
    assert block["used"][0] == {
        "ipv4": "10.1.0.0",
        "ipv6": None,
        "slot": 0,
        "state": "allocated",
        "namespace": "apps",
        "pod": "web-1",
        "container": "00" * 32,
        "interface": "eth0",
        "since": "2030-01-01T11:58:30Z",
    }
    assert [entry["slot"] for entry in block["used"]] == [0, 1, 3], "free addresses are not listed"
    big = make_node(make_block("big-0", ipv6="fd00::/64"))
    assert json.loads(render_json(big))["addresses"]["free"] == 2**64
    assert render_json(NODE).endswith("}\n")
