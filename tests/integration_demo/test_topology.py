from itertools import count
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from integration.demo.inventory import BlockRow, PodRow
from integration.demo.topology import NodeRow, render_topology

SVG = "{http://www.w3.org/2000/svg}"
POOLS = {"default": "10.0.0.0/16  fd00::/112", "dmz": "10.1.0.0/24"}

Sizes = list[list[int]]
"""For each node, for each of its blocks: the number of pods."""


def draw(sizes: Sizes) -> tuple[ET.Element, list[BlockRow], list[PodRow]]:
    numbers = count()
    nodes = [NodeRow(f"node-{index}", f"192.0.2.{index}", f"2001:db8::{index}") for index in range(len(sizes))]
    blocks: list[BlockRow] = []
    pods: list[PodRow] = []
    for node, own in zip(nodes, sizes, strict=True):
        for pod_count in own:
            pool = list(POOLS)[len(blocks) % len(POOLS)]
            block = BlockRow(f"{pool}-{len(blocks)}", pool, node.name, (f"10.0.{len(blocks)}.0/24",))
            blocks.append(block)
            pods += [
                PodRow("web", f"pod-{number}", node.name, f"10.9.0.{number}", "", block.name, pool)
                for _, number in zip(range(pod_count), numbers, strict=False)
            ]
    svg = render_topology(nodes=nodes, blocks=blocks, pods=pods, pools=POOLS)
    return parse(svg), blocks, pods


def parse(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 (our own output)


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def boxes(root: ET.Element) -> list[tuple[int, int, int, int]]:
    """Left, top, right, bottom of every rectangle, on the page."""
    found = []
    for group in (root, *root.findall(f"{SVG}g")):
        shift = group.get("transform", "translate(0,0)").removeprefix("translate(").removesuffix(")").split(",")
        for rect in group.findall(f"{SVG}rect"):
            left = int(rect.get("x", "0")) + int(shift[0])
            top = int(rect.get("y", "0")) + int(shift[1])
            found.append((left, top, left + int(rect.get("width", "0")), top + int(rect.get("height", "0"))))
    return found


def pod_boxes(root: ET.Element) -> list[tuple[int, int, int, int]]:
    only = ET.Element("svg")
    for group in root.findall(f"{SVG}g"):
        kept = ET.SubElement(only, f"{SVG}g", {"transform": group.get("transform", "")})
        kept.extend(rect for rect in group.findall(f"{SVG}rect") if rect.get("class") == "pod")
    return boxes(only)


SIZES = st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=4)


@given(SIZES)
def test_every_node_block_and_pod_is_named_once(sizes: Sizes) -> None:
    root, blocks, pods = draw(sizes)
    written = texts(root)
    names = [f"node-{index}" for index in range(len(sizes))] + [block.name for block in blocks]
    for name in [*names, *(f"web/{pod.name}" for pod in pods)]:
        assert written.count(name) == 1


@given(SIZES)
def test_everything_is_on_the_page_and_no_pod_covers_another(sizes: Sizes) -> None:
    root, _, pods = draw(sizes)
    width, height = int(root.get("width", "0")), int(root.get("height", "0"))
    for left, top, right, bottom in boxes(root):
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    drawn = pod_boxes(root)
    assert len(drawn) == len(pods)
    for index, (left, top, right, bottom) in enumerate(drawn):
        for other_left, other_top, other_right, other_bottom in drawn[:index]:
            assert other_right <= left or right <= other_left or other_bottom <= top or bottom <= other_top


def test_names_cannot_break_the_picture() -> None:
    name = 'a<b&"c'
    root = parse(render_topology(nodes=[NodeRow(name, "192.0.2.1", "2001:db8::1")], blocks=[], pods=[], pools=POOLS))
    assert name in texts(root)
    assert "no blocks" in texts(root)


def test_a_pools_colour_is_that_of_its_blocks() -> None:
    root, _, _ = draw([[1, 1]])
    [group] = root.findall(f"{SVG}g")
    strokes = [rect.get("stroke") for rect in group.findall(f"{SVG}rect") if rect.get("stroke")]
    legend = [rect.get("fill") for rect in root.findall(f"{SVG}rect") if rect.get("fill")]
    assert strokes == legend
    assert len(set(legend)) == len(POOLS)
