"""The pages of docs/ and the fenced blocks in them, each with the mark that stands before it.

A mark is an HTML comment in the line before the fence, so readers of the page do not see it:

    <!-- run: name -->                  executed by the cluster tests under that name
    <!-- run: name, on the node -->     the same, in a shell of a node
    <!-- by hand: why -->               executed by nobody, and why
    <!-- values -->                     values of the chart; with `values: profile`, on top of that profile

Every block of commands has one of the first three. A block of YAML without a mark is a manifest that is only judged.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).resolve().parent.parent.parent
DOCS: Final = ROOT / "docs"

COMMANDS: Final = "sh"
MANIFESTS: Final = "yaml"
SAYINGS: Final = "text"
"""Languages of blocks: commands, documents, and what programs say, a line each."""

_FENCE = re.compile(r"(?P<fence>`{3,})(?P<language>[\w-]*)\s*")
_MARK = re.compile(r"<!-- (?P<kind>run|by hand|values)(?:: (?P<about>.+?))? -->")
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_NODE = ", on the node"


class PageError(Exception):
    """A page breaks the conventions; the message says where."""


class Place(Enum):
    """Where commands are typed."""

    ADMIN = "on a machine with kubectl and helm, at the top of the checkout"
    NODE = "on a node, as root"


@dataclass(frozen=True, slots=True)
class Run:
    """Executed by tests. Names are unique in all pages."""

    name: str
    place: Place = Place.ADMIN


@dataclass(frozen=True, slots=True)
class ByHand:
    """Executed by nobody."""

    why: str


@dataclass(frozen=True, slots=True)
class Values:
    """The block has values of the chart. `profile` is a file in the chart's profiles, empty for none."""

    profile: str = ""


Mark: TypeAlias = Run | ByHand | Values | None


@dataclass(frozen=True, slots=True)
class Block:
    """`line` is that of the opening fence, from 1. `text` ends with a line feed unless it is empty."""

    page: str
    line: int
    language: str
    text: str
    mark: Mark = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Page:
    """`prose` is the page without its blocks, each replaced by empty lines, so that line numbers stay."""

    name: str
    prose: str
    blocks: tuple[Block, ...]


def read_pages(folder: Path = DOCS) -> list[Page]:
    """All pages of a folder, by name. Raises PageError."""
    return [parse_page(path.name, path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.md"))]


def parse_page(name: str, text: str) -> Page:
    """Raises PageError: a fence without an end, or a mark that means nothing or stands before no block."""
    prose: list[str] = []
    blocks: list[Block] = []
    lines = iter(enumerate(text.splitlines(), start=1))
    mark: Mark = None
    marked = 0
    for number, line in lines:
        if (fence := _FENCE.fullmatch(line)) is not None:
            body = list(_body(lines, fence["fence"], f"{name}:{number}"))
            content = "".join(f"{each}\n" for each in body)
            blocks.append(Block(name, number, fence["language"], content, mark))
            prose += [""] * (len(body) + 2)
            mark, marked = None, 0
            continue
        if marked:
            raise PageError(f"{name}:{marked}: no block follows the mark")
        if (found := _MARK.fullmatch(line)) is not None:
            mark, marked = _read_mark(found, f"{name}:{number}"), number
        prose.append(line)
    if marked:
        raise PageError(f"{name}:{marked}: no block follows the mark")
    return Page(name, "\n".join(prose), tuple(blocks))


def runnable_blocks(pages: Sequence[Page]) -> Mapping[str, Block]:
    """Those that the cluster tests execute, by name, in the order of the pages. Raises PageError for a name twice."""
    found: dict[str, Block] = {}
    for block in (block for page in pages for block in page.blocks):
        if isinstance(block.mark, Run):
            if block.mark.name in found:
                raise PageError(f"{block}: {found[block.mark.name]} has the name {block.mark.name!r} already")
            found[block.mark.name] = block
    return found


def _body(lines: Iterator[tuple[int, str]], fence: str, where: str) -> Iterator[str]:
    for _, line in lines:
        if line.rstrip() == fence:
            return
        yield line
    raise PageError(f"{where}: the block has no end")


def _read_mark(found: re.Match[str], where: str) -> Mark:
    about = found["about"] or ""
    match found["kind"]:
        case "values":
            return Values(about)
        case "by hand":
            if not about:
                raise PageError(f"{where}: say why this is done by hand")
            return ByHand(about)
        case _:
            name = about.removesuffix(_NODE)
            if _NAME.fullmatch(name) is None:
                raise PageError(f"{where}: {name!r} is no name of a block")
            return Run(name, Place.NODE if about.endswith(_NODE) else Place.ADMIN)
