"""Draws what the demo found as an SVG file: nodes, their blocks, and the pods inside the blocks. Pure: rows to text."""

from dataclasses import dataclass
from html import escape

from integration.demo.inventory import BlockRow, PodRow

POOL_COLOURS = ("#2f6f9f", "#b3541e", "#4d7c3a", "#7a4b8c", "#8a6d1d")

NODE_WIDTH = 470
NODE_GAP = 70
MARGIN = 30
POD_HEIGHT = 54
BLOCK_HEADER = 34
BLOCK_GAP = 14
NODE_HEADER = 62
FABRIC_GAP = 64
TITLE_HEIGHT = 96
FOOT_HEIGHT = 60


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node with the addresses that the others route to."""

    name: str
    ipv4: str
    ipv6: str


def render_topology(*, nodes: list[NodeRow], blocks: list[BlockRow], pods: list[PodRow], pools: dict[str, str]) -> str:
    """The picture; `pools` maps each pool to its subnets, as text. Scales with the number of nodes, blocks and pods."""
    colours = {pool: POOL_COLOURS[index % len(POOL_COLOURS)] for index, pool in enumerate(pools)}
    columns = [_node(node, blocks, pods, colours) for node in nodes]
    tallest = max(height for _, height in columns)
    width = 2 * MARGIN + len(nodes) * NODE_WIDTH + (len(nodes) - 1) * NODE_GAP
    fabric = TITLE_HEIGHT + tallest + FABRIC_GAP
    parts = [_title(pools, colours)]
    for index, (drawing, height) in enumerate(columns):
        left = MARGIN + index * (NODE_WIDTH + NODE_GAP)
        centre = left + NODE_WIDTH // 2
        parts.append(f'<g transform="translate({left},{TITLE_HEIGHT})">{drawing}</g>')
        parts.append(f'<path class="wire" d="M{centre} {TITLE_HEIGHT + height} V{fabric}"/>')
        parts.append(_text(centre + 10, fabric - 22, "BIRD announces the blocks", "small"))
    right = width - MARGIN
    parts.append(f'<rect class="fabric" x="{MARGIN}" y="{fabric}" width="{right - MARGIN}" height="30" rx="6"/>')
    parts.append(_text(width // 2, fabric + 20, "node network", "fabric-label"))
    height = fabric + FOOT_HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="Pods, blocks and nodes">{_STYLE}'
        f'<rect class="paper" width="{width}" height="{height}"/>{"".join(parts)}</svg>\n'
    )


def _node(node: NodeRow, blocks: list[BlockRow], pods: list[PodRow], colours: dict[str, str]) -> tuple[str, int]:
    parts: list[str] = []
    top = NODE_HEADER
    for block in (block for block in blocks if block.node == node.name):
        inside = [pod for pod in pods if pod.block == block.name]
        height = BLOCK_HEADER + max(1, len(inside)) * POD_HEIGHT
        colour = colours.get(block.pool, "#555")
        parts.append(
            f'<rect x="16" y="{top}" width="{NODE_WIDTH - 32}" height="{height}" rx="8" '
            f'fill="{colour}" fill-opacity=".10" stroke="{colour}"/>'
        )
        parts.append(_text(28, top + 22, block.name, "block"))
        parts.append(_text(NODE_WIDTH - 28, top + 22, "  ".join(block.networks), "small end"))
        for row, pod in enumerate(inside):
            parts.append(_pod(pod, top + BLOCK_HEADER + row * POD_HEIGHT, colour))
        top += height + BLOCK_GAP
    if top == NODE_HEADER:
        parts.append(_text(16, top + 16, "no blocks", "small"))
        top += 30
    height = top + 8
    head = (
        f'<rect class="node" width="{NODE_WIDTH}" height="{height}" rx="12"/>'
        + _text(16, 28, node.name, "name")
        + _text(16, 48, f"{node.ipv4}   {node.ipv6}", "small")
        + _text(NODE_WIDTH - 16, 28, "kubelet · containerd · coild", "small end")
    )
    return head + "".join(parts), height


def _pod(pod: PodRow, top: int, colour: str) -> str:
    return (
        f'<rect class="pod" x="28" y="{top}" width="{NODE_WIDTH - 56}" height="{POD_HEIGHT - 8}" rx="6"/>'
        f'<rect x="28" y="{top}" width="5" height="{POD_HEIGHT - 8}" rx="2" fill="{colour}"/>'
        + _text(42, top + 19, f"{pod.namespace}/{pod.name}", "pod-name")
        + _text(42, top + 37, f"{pod.ipv4}   {pod.ipv6}", "mono")
    )


def _title(pools: dict[str, str], colours: dict[str, str]) -> str:
    parts = [_text(MARGIN, 40, "Coil: pods, blocks and nodes", "title")]
    left = MARGIN
    for pool, subnets in pools.items():
        label = f"{pool}: {subnets}"
        parts.append(f'<rect x="{left}" y="58" width="14" height="14" rx="3" fill="{colours[pool]}"/>')
        parts.append(_text(left + 20, 70, label, "small"))
        left += 44 + 7 * len(label)
    return "".join(parts)


def _text(left: int, top: int, content: str, style: str) -> str:
    return f'<text class="{style}" x="{left}" y="{top}" xml:space="preserve">{escape(content)}</text>'


_STYLE = (
    "<style>"
    "text{font-family:system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#1d2733}"
    ".paper{fill:#fbfaf7}.title{font-size:22px;font-weight:600}.name{font-size:17px;font-weight:600}"
    ".block{font-size:13px;font-weight:600}.small{font-size:12px;fill:#55606c}.end{text-anchor:end}"
    ".pod-name{font-size:13px}.mono{font-size:12px;font-family:ui-monospace,'DejaVu Sans Mono',monospace;fill:#55606c}"
    ".node{fill:#fff;stroke:#8b97a3;stroke-width:1.5}.pod{fill:#fff;stroke:#d3d9de}"
    ".wire{stroke:#8b97a3;stroke-width:2;fill:none}.fabric{fill:#e8ebee;stroke:#8b97a3}"
    ".fabric-label{font-size:13px;text-anchor:middle;fill:#55606c}"
    "</style>"
)
