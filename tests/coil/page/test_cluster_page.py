"""The page of the cluster, as an independent parser sees it."""

import json
from datetime import timedelta

import pytest
from hypothesis import given, settings

from coil.page.cluster_document import (
    ClusterDocument,
    ConditionDocument,
    HistoryDocument,
    NodeDocument,
    RequestDocument,
    RequestState,
    SubnetDocument,
)
from coil.page.cluster_page import POOLS, TABLE_ROWS, render_cluster_page
from coil.page.document import render_json
from coil.page.pool_drawing import PAGE_CELLS, POOL_CELLS
from coil.page.query import parse_query
from tests.coil.page.html_tree import Element, parse_html
from tests.coil.page.scene import NOON, TEXTS, make_cluster, make_pool, place

CLUSTER = make_cluster(
    make_pool(
        "default",
        place("default", 0),
        place("default", 1, state="reserved"),
        place("default", 2, node="node2", state="leaving"),
        place("default", 4, node="gone", state="orphaned"),
    ),
    make_pool("lab", place("lab", 0, node="node2"), total=1),
    make_pool("typo", total=0, gives_blocks=False, reason="it overlaps the pool 'default'"),
)


def page(cluster: ClusterDocument = CLUSTER, query: str = "") -> Element:
    return parse_html(render_cluster_page(cluster, parse_query(query)))


def cells(root: Element, pool: str) -> list[Element]:
    return root.by_id(f"grid-{pool}").one("div", "grid").all("i")


def marks(root: Element, pool: str) -> list[str]:
    return [(cell.attributes["class"] or "").split()[0] for cell in cells(root, pool)]


def rows(root: Element, section: str) -> list[list[str]]:
    body = root.by_id(section).one("tbody")
    return [[cell.text for cell in row.children if isinstance(cell, Element)] for row in body.all("tr")]


def test_each_block_is_a_cell_in_its_state_up_to_a_little_after_the_last() -> None:
    root = page()
    assert marks(root, "default")[:6] == ["used", "reserved", "leaving", "free", "orphaned", "free"]
    assert len(marks(root, "default")) == 5 + 32
    assert root.by_id("grid-default").one("p", "note").text == "2,011 more blocks beyond, all free"
    assert marks(root, "lab") == ["used"]
    assert marks(root, "typo") == []


def test_a_cell_says_which_block_it_is_and_whose() -> None:
    shown = cells(page(), "default")
    assert shown[2].attributes["data-tip"] == "default-2\n10.1.0.64/27\nleaving, node2"
    assert shown[2].attributes["data-find"] == "node2"
    assert shown[3].attributes["data-tip"] == "default-3\nfree"


def test_a_pool_that_gives_no_blocks_says_why() -> None:
    root = page()
    assert root.by_id("pool-typo").one("p", "wrong").text == "Gives no blocks: it overlaps the pool 'default'"
    assert [chip.text for chip in root.by_id("pool-default").all("span", "chip")] == ["gives blocks"]


def test_conditions_are_shown_when_there_is_something_to_do() -> None:
    conditions = (
        ConditionDocument(type="Ready", status="True", reason="Valid"),
        ConditionDocument(type="Full", status="False", reason="NearlyFull", message="1 of 16 blocks left"),
        ConditionDocument(type="Strange", status="Unknown"),
    )
    chips = page(make_cluster(make_pool("p", conditions=conditions))).by_id("pool-p").all("span", "chip")
    assert [(chip.text, chip.attributes.get("title")) for chip in chips] == [
        ("gives blocks", None),
        ("NearlyFull", "1 of 16 blocks left"),
        ("Strange: Unknown", None),
    ]
    calm = (ConditionDocument(type="Full", status="False", reason="HasRoom"),)
    assert len(page(make_cluster(make_pool("p", conditions=calm))).by_id("pool-p").all("span", "chip")) == 1


def test_counts() -> None:
    tiles = {tile.one("dt").text: tile.one("dd").text for tile in page().all("div", "tile")}
    assert tiles == {
        "blocks in use": "2",
        "reserved": "1",
        "leaving": "1",
        "orphaned": "1",
        "free": "2,044",
        "pools": "3",
        "nodes": "3",
        "waiting": "0",
    }
    assert page().by_id("pool-default").one("p", "big").text == "4 of 2,048 blocks · < 1 %"


def test_the_curve_shows_the_last_hour() -> None:
    values = tuple(range(60))
    history = HistoryDocument(interval_seconds=30.0, until=NOON, used_blocks=values)
    spark = page(make_cluster(make_pool("p", history=history))).one("svg", "spark")
    assert spark.attributes["aria-label"] == "blocks in use over the last 1 h: from 0 to 59, now 59"
    points = (spark.one("path", "curve").attributes["d"] or "").removeprefix("M").split()
    xs, ys = [float(x) for x in points[::2]], [float(y) for y in points[1::2]]
    assert len(xs) == 60
    assert xs == sorted(xs)
    assert ys == sorted(ys, reverse=True), "it rises"
    assert xs[0] > 100, "half an hour is half the width"
    empty = page(make_cluster(make_pool("p", history=HistoryDocument(interval_seconds=30.0)))).one("svg", "spark")
    assert empty.all("path", "curve") == []


def test_requests_without_a_block_are_listed() -> None:
    pending = RequestDocument(
        name="req-1", node="node1", pool="default", state=RequestState.PENDING, since=NOON - timedelta(hours=2)
    )
    refused = RequestDocument(
        name="req-2", node="node2", pool="typo", state=RequestState.REFUSED, reason="invalid pool: typo"
    )
    root = page(make_cluster(make_pool("default"), requests=(pending, refused)))
    assert rows(root, "requests") == [
        ["req-1", "node1", "default", "pending", "", "2 h"],
        ["req-2", "node2", "typo", "refused", "invalid pool: typo", ""],
    ]
    assert not [section for section in page().all("section") if section.attributes["id"] == "requests"]


def test_nodes_and_their_blocks() -> None:
    nodes = (
        NodeDocument(name="gone", present=False, blocks={"default": 1}),
        NodeDocument(name="node1", present=True, blocks={"default": 2, "lab": 1}),
        NodeDocument(name="node2", present=True, unready_since=NOON - timedelta(minutes=12), blocks={}),
    )
    root = page(make_cluster(make_pool("default"), nodes=nodes))
    assert rows(root, "nodes") == [
        ["gone", "absent", "1", "default 1"],
        ["node1", "yes", "3", "default 2, lab 1"],
        ["node2", "not ready for 12 min", "0", ""],
    ]
    assert root.by_id("nodes").all("a")[1].attributes["href"] == "/ip-manager?q=node1"


@pytest.mark.parametrize(
    ("query", "blocks", "nodes"),
    [
        ("node2", ["default-2", "lab-0"], ["node2"]),
        ("lab", ["lab-0"], ["node2"]),
        ("default-4", ["default-4"], ["gone"]),
        ("10.1.0.65", ["default-2"], ["node2"]),
        ("10.1.0.0/26", ["default-0", "default-1", "lab-0"], ["node1", "node2"]),
        ("192.0.2.1", [], []),
        ("nothing", [], []),
    ],
)
def test_a_search_marks_blocks_and_narrows_the_nodes(query: str, blocks: list[str], nodes: list[str]) -> None:
    root = page(query=query)
    assert [str(cell.attributes["data-tip"]).split("\n")[0] for cell in root.all("i", "hit")] == blocks
    assert [row[0] for row in rows(root, "nodes")] == nodes


def test_who_speaks() -> None:
    assert "the cluster, as replica-1 sees it, the leader" in page().one("header").text
    assert "a replica that stands by" in page(make_cluster(leads=False)).one("header").text


def test_a_large_pool_takes_one_cell_for_many_blocks() -> None:
    pool = make_pool("huge", *(place("huge", index) for index in range(0, 4000, 2)), total=2**59)
    root = page(make_cluster(pool))
    assert len(cells(root, "huge")) <= POOL_CELLS
    assert set(marks(root, "huge")[:-10]) == {"some"}, "half of each run"
    assert cells(root, "huge")[0].attributes["data-tip"] == (
        "4 of 8 in use\nhuge-0  node1\nhuge-2  node1\nhuge-4  node1\nhuge-6  node1"
    )
    assert "each cell is 8 blocks" in root.by_id("grid-huge").one("p", "note").text


def test_a_page_has_bounds() -> None:
    subnets = tuple(SubnetDocument(ipv4=f"10.{n}.0.0/16") for n in range(200))
    pools = [
        make_pool(f"p{n:03}", *(place(f"p{n:03}", i, node=f"n{i}") for i in range(100)), subnets=subnets)
        for n in range(POOLS + 20)
    ]
    nodes = tuple(NodeDocument(name=f"n{n}", present=True, blocks={}) for n in range(TABLE_ROWS + 20))
    text = render_cluster_page(make_cluster(*pools, nodes=nodes), parse_query(""))
    root = parse_html(text)
    assert sum(len(grid.all("i")) for grid in root.all("div", "grid")) <= PAGE_CELLS
    assert root.by_id("more-pools").text == "20 more pools: search for them"
    assert len(rows(root, "nodes")) == TABLE_ROWS
    assert len(text) < 2_000_000
    found = page(make_cluster(*pools, nodes=nodes), query="p119")
    assert [section.all("h2")[0].text for section in found.all("section")[1:-1]] == ["p119"]


@settings(max_examples=40)
@given(TEXTS, TEXTS)
def test_whatever_the_names_are_the_page_is_the_same_markup(name: str, query: str) -> None:
    request = RequestDocument(name=name, node=name, pool=name, state=RequestState.REFUSED, reason=name)
    pool = make_pool(name, place(name, 0, node=name), reason=name, gives_blocks=False)
    root = page(make_cluster(pool, replica=name, requests=(request,)), query)
    assert len(root.all("script")) == len(root.all("style")) == 1
    assert root.all("img") == root.all("b", "x") == []
    attributes = {name for element in root.walk() for name in element.attributes}
    assert not {name for name in attributes if name.startswith("on")} | attributes & {"src", "srcdoc", "style"}


def test_json() -> None:
    document = json.loads(render_json(CLUSTER))
    assert (document["replica"], document["leads"], document["at"]) == ("replica-1", True, "2030-01-01T12:00:00Z")
    pool = document["pools"][0]
    assert pool["blocks"] == {"total": 2048, "used": 4, "free": 2044}
    assert (pool["givesBlocks"], pool["reason"], pool["blockSize"]) == (True, "", 32)
    assert pool["placed"][2] == {
        "name": "default-2",
        "index": 2,
        "node": "node2",
        "state": "leaving",
        "ipv4": "10.1.0.64/27",
        "ipv6": None,
    }
    assert pool["history"] == {"intervalSeconds": 30.0, "until": "2030-01-01T12:00:00Z", "usedBlocks": [0, 1, 4]}
    assert document["pools"][2]["reason"] == "it overlaps the pool 'default'"
