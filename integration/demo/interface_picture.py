"""A node's interfaces and their addresses in lines: which pod has which, and which are warm. No input, no output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TAKEN, WARM = "■", "□"
LEGEND = (
    f"A line for each network interface: its link and its own address; {TAKEN} a pod's address, "
    f"{WARM} one that EC2 has\nassigned for the next pod"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PicturedInterface:
    """`own` is its primary address; `pods` has its other addresses, in EC2's order, and who has each: "" for nobody."""

    link: str
    own: str
    pods: Mapping[str, str]

    @property
    def cells(self) -> list[str]:
        return [f"{TAKEN if pod else WARM} {address} {pod}".rstrip() for address, pod in self.pods.items()]


def render_picture(node: str, interfaces: Sequence[PicturedInterface]) -> str:
    """The node's name with a line below it for each interface, in columns."""
    rows = [[f"{each.link}, {each.own}", *each.cells] for each in interfaces]
    columns = max(map(len, rows), default=0)
    widths = [max(len(row[column]) for row in rows if column < len(row)) for column in range(columns)]
    branches = ["├─"] * (len(rows) - 1) + ["└─"]
    lines = [
        f"{branch} {'   '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))}".rstrip()
        for branch, row in zip(branches, rows, strict=False)
    ]
    return "\n".join([node, *lines])
