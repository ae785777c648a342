"""`python -m integration.docs`: which blocks of the pages can be executed as they stand, which not, and why not."""

import sys

from integration.docs.page import COMMANDS, ByHand, PageError, Place, Run, read_pages, runnable_blocks


def render_list() -> str:
    """A line for each block that can be executed, and for each block of commands that is not. Raises PageError."""
    pages = read_pages()
    runnable_blocks(pages)  # for its judgement of the names
    lines = []
    for block in (block for page in pages for block in page.blocks):
        match block.mark:
            case Run(name=name, place=place):
                lines.append(f"{block!s:24} {name}{', on a node' if place is Place.NODE else ''}")
            case ByHand(why=why) if block.language == COMMANDS:
                lines.append(f"{block!s:24} by hand: {why}")
    return "\n".join(lines)


def main() -> int:
    try:
        print(render_list())
    except PageError as error:
        print(f"coil: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
